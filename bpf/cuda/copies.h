/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How many bytes a copy moved, which way, and what kind of host memory was at its host side. */
#pragma once
#include "contexts.h"
#include "ranges.h"
#include "spans.h"

enum end { end_unknown, end_device, end_managed, end_host, end_pageable, end_pinned };

/* CUmemorytype (cuda.h). */
enum { type_host = 1, type_device, type_array, type_unified };

/* One side of a copy that is described in memory: a CUmemorytype, and the address that goes with it. */
struct side {
	__u32 type, zero;
	__u64 host, device;
};

/* CUDA_MEMCPY2D_v2 (cuda.h). */
struct copy_2d {
	__u64 source_x, source_y;
	struct side source;
	__u64 source_array, source_pitch;
	__u64 target_x, target_y;
	struct side target;
	__u64 target_array, target_pitch;
	__u64 extent[2];
};

/* CUDA_MEMCPY3D_v2 and CUDA_MEMCPY3D_PEER_v1 (cuda.h): the latter has contexts where the former has nothing. */
struct copy_3d {
	__u64 source_x, source_y, source_z, source_level;
	struct side source;
	__u64 source_array, source_context, source_pitch, source_height;
	__u64 target_x, target_y, target_z, target_level;
	struct side target;
	__u64 target_array, target_context, target_pitch, target_height;
	__u64 extent[3];
};

#define BATCH 128
#define MOST_UNREAD (1 << 20) /* of a call */

/* Which memory an address belongs to. One in no range seen is host memory only if `host`: it may be device
 * memory that no allocation gave (another process's, a module's variable). */
__noinline int end_of(__u32 tgid, __u64 address, bool host)
{
	const struct range *range = range_of(tgid, address);
	const struct process *process;

	if (range && range->memory == memory_managed)
		return end_managed;
	if (range && range->memory == memory_pinned_host)
		return end_pinned;
	if (!host)
		return range ? end_device : end_unknown;
	if (range || !bpf_map_lookup_elem(&covered, &tgid))
		return end_host;
	process = bpf_map_lookup_elem(&processes, &tgid);
	return process && process->unsure ? end_host : end_pageable;
}

static __always_inline enum end end_of_side(__u32 tgid, const struct side *side)
{
	if (side->type == type_device || side->type == type_array)
		return end_device;
	return end_of(tgid, side->type == type_host ? side->host : side->device, side->type == type_host);
}

/* Where a side is: managed memory that a copy names as the host's is on the host's side. */
static __always_inline enum end place_of(const struct side *side, enum end end)
{
	return side->type == type_host ? end_host : end;
}

static __always_inline enum direction direction_of(enum end source, enum end target)
{
	if (source < end_host && source != end_device)
		return direction_unknown;
	if (target < end_host && target != end_device)
		return direction_unknown;
	if (source == end_device)
		return target == end_device ? direction_d2d : direction_d2h;
	return target == end_device ? direction_h2d : direction_h2h;
}

static __always_inline enum host host_of(enum end end)
{
	switch (end) {
	case end_device:
		return host_none;
	case end_managed:
		return host_managed;
	case end_pageable:
		return host_pageable;
	case end_pinned:
		return host_pinned;
	default:
		return host_unknown;
	}
}

/* Gives the direction, and the kind of host memory in the byte above. */
__noinline int add_copy(__u32 tgid, __u64 bytes, __u32 source, __u32 target, __u32 direction)
{
	static const __u64 none;
	enum host from = host_of(source), to = host_of(target);
	struct copy_key key = {.tgid = tgid, .device = device_of(bpf_get_current_pid_tgid())};
	__u64 *copied;

	key.direction = direction == direction_unknown ? direction_of(source, target) : direction;
	/* Of two host sides the slower one decides, after one that is unknown. */
	if (from == host_none || to == host_none)
		key.host = from > to ? from : to;
	else
		key.host = from < to ? from : to;
	copied = row_of(copies, &key, &none);
	if (copied)
		add(copied, bytes);
	return key.direction | key.host << 8;
}

static __always_inline void count_copy(__u32 tgid, __u64 bytes, enum end source, enum end target,
				       enum direction direction, struct outcome *outcome)
{
	int copy = add_copy(tgid, bytes, source, target, direction);

	outcome->bytes += bytes;
	outcome->direction = copy & 255;
	outcome->host = copy >> 8 & 255;
}

static __always_inline __u64 argument(const struct flight *call, __u8 at)
{
	return call->arguments[at < ARGUMENTS ? at : 0];
}

static __always_inline void copy_plain(__u32 tgid, const struct flight *call, struct outcome *outcome)
{
	enum end source = end_device, target = end_device;
	enum direction direction = call->cookie.direction;

	if (direction == direction_unknown) {
		target = end_of(tgid, call->arguments[0], false);
		source = end_of(tgid, call->arguments[1], false);
	} else if (direction == direction_h2d) {
		source = end_of(tgid, argument(call, call->cookie.host_at), true);
	} else if (direction == direction_d2h) {
		target = end_of(tgid, argument(call, call->cookie.host_at), true);
	}
	count_copy(tgid, argument(call, call->cookie.bytes_at), source, target, direction, outcome);
}

/* A copy described at arg0. Only what is needed is read: the verifier allows 512 bytes of stack in all. */
static __always_inline void copy_described(__u32 tgid, const struct flight *call, struct outcome *outcome)
{
	bool flat = call->cookie.effect == effect_copy_2d;
	__u64 at = call->arguments[0], extent[3] = {0, 0, 1};
	struct side source, target;
	enum end from, to;

#define AT(member)                                                                                           \
	((void *)(at + (flat ? offsetof(struct copy_2d, member) : offsetof(struct copy_3d, member))))
	if (bpf_probe_read_user(&source, sizeof(source), AT(source)) ||
	    bpf_probe_read_user(&target, sizeof(target), AT(target)) ||
	    bpf_probe_read_user(extent, flat ? 2 * sizeof(*extent) : 3 * sizeof(*extent), AT(extent))) {
		add(&copies_unread, 1);
		return;
	}
#undef AT
	from = end_of_side(tgid, &source);
	to = end_of_side(tgid, &target);
	count_copy(tgid, extent[0] * extent[1] * extent[2], from, to,
		   direction_of(place_of(&source, from), place_of(&target, to)), outcome);
}

/* A library of the process's own may take any number for a batch. */
static __always_inline void add_unread(__u64 copies)
{
	add(&copies_unread, copies < MOST_UNREAD ? copies : MOST_UNREAD);
}

static __noinline int copy_batch(__u32 tgid, const struct flight *call, struct outcome *outcome)
{
	__u64 count = call->arguments[3], bytes, target, source;

	for (__u32 i = 0; i < BATCH; i++) {
		if (i >= count)
			return 0;
		if (bpf_probe_read_user(&target, 8, (__u64 *)call->arguments[0] + i) ||
		    bpf_probe_read_user(&source, 8, (__u64 *)call->arguments[1] + i) ||
		    bpf_probe_read_user(&bytes, 8, (__u64 *)call->arguments[2] + i)) {
			add_unread(count - i);
			return 0;
		}
		count_copy(tgid, bytes, end_of(tgid, source, false), end_of(tgid, target, false),
			   direction_unknown, outcome);
	}
	if (count > BATCH)
		add_unread(count - BATCH);
	return 0;
}
