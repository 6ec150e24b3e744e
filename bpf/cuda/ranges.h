/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which memory an address inside an allocation belongs to. A range is kept as the fewest aligned powers of
 * two that make it up (at most two of each size), each a prefix in a longest-prefix-match map. */
#pragma once
#include "cuda.h"

#define ADDRESS_BITS 48
#define PREFIX_BITS 96 /* tgid and address */

struct prefix {
	__u32 length;
	__u32 tgid;
	__u64 address; /* big-endian: the map compares from the first byte on */
};

/* Nine bytes, so that a node of the map takes 64. */
struct range {
	__u8 handle[8]; /* that is mapped there, if the mapping has no row of `live` */
	enum memory memory;
};

#define RANGES 1048576
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, RANGES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct range);
} ranges SEC(".maps");
__u64 ranges_lost = 0, ranges_full_tick = 0;

/* Its host memory is not all in ranges: what lies in none is of an unknown kind. */
static __always_inline void make_unsure(__u32 tgid)
{
	static const struct process none;
	struct process *process = lookup_or_init(processes, &tgid, &none);

	if (process)
		process->unsure = 1;
	else
		bpf_map_delete_elem(&covered, &tgid);
}

#define NO_MEMORY 255 /* for put_range: the range ends */

/* -1 if there was no room. */
static __always_inline int put_block(struct process *process, struct prefix *key, __u64 address, __u32 log2,
				     const struct range *range)
{
	key->length = PREFIX_BITS - log2;
	key->address = __builtin_bswap64(address);
	if (range->memory == NO_MEMORY) {
		if (!bpf_map_delete_elem(&ranges, key))
			add(&process->blocks, -1);
		return 0;
	}
	if (bpf_map_update_elem(&ranges, key, range, BPF_ANY)) {
		ranges_full_tick = bpf_jiffies64();
		add(&ranges_lost, 1);
		return -1;
	}
	add(&process->blocks, 1);
	return 0;
}

/* Whether a process may have more blocks: a quarter of all at most. */
static __always_inline bool room_for_range(const struct process *process)
{
	return process->blocks < RANGES / 4 &&
	       (!ranges_full_tick || bpf_jiffies64() - ranges_full_tick >= FULL_TICKS);
}

/* Makes a range or ends it; -1 if there was not room for all of it. Not static: so the verifier looks at it once, not
 * at every call. */
__noinline int put_range(__u32 tgid, __u64 at, __u64 bytes, __u64 handle, __u32 memory)
{
	struct process *process = bpf_map_lookup_elem(&processes, &tgid);
	struct range range = {.memory = memory};
	struct prefix key = {.tgid = tgid};
	__u64 end = at + bytes;
	__u32 log2;

	if (!process || end < at)
		return 0;
	__builtin_memcpy(range.handle, &handle, sizeof(handle));
	if (memory != NO_MEMORY && !room_for_range(process)) {
		add(&ranges_lost, 1);
		return -1;
	}
	for (log2 = 0; log2 < ADDRESS_BITS; log2++) {
		__u64 block = 1ull << log2;

		if (at + block > end)
			break;
		if (at & block) {
			if (put_block(process, &key, at, log2, &range))
				return -1;
			at += block;
		}
	}
	for (log2 = ADDRESS_BITS; log2-- > 0;) {
		__u64 block = 1ull << log2;

		if (at + block <= end) {
			if (put_block(process, &key, at, log2, &range))
				return -1;
			at += block;
		}
	}
	return 0;
}

/* Where a row of `live` lies, with the handle that is mapped there. The driver's only: every allocation is made there.
 * Pools are left out, for they are made to be allocated from often. Allocations start at multiples of 256 bytes (CUDA
 * C++ Programming Guide, device memory accesses), so rounding their end up to one saves prefixes; registered memory is
 * exact. 0, or -1 if there was no room. */
static __always_inline int put_live(const struct live_key *key, const struct live *live, bool remove)
{
	bool handle = key->thing == thing_handle;
	__u64 bytes = live->memory == memory_pinned_host ? live->bytes : (live->bytes + 255) & ~255ull;
	__u64 address = handle ? live->owner : key->address;

	if (key->layer != layer_driver || !address || live->memory == memory_pool)
		return 0;
	return put_range(key->tgid, address, bytes, handle ? key->address : 0,
			 remove ? NO_MEMORY : live->memory);
}

static __always_inline const struct range *range_of(__u32 tgid, __u64 address)
{
	struct prefix key = {PREFIX_BITS, tgid, __builtin_bswap64(address)};

	return bpf_map_lookup_elem(&ranges, &key);
}
