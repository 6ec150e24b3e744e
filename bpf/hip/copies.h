/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Copies: their direction and bytes, read when they are called and counted when they have succeeded. */
#pragma once
#include "functions.h"
#include "../arguments.h"

struct copy_key {
	__u32 tgid;
	enum direction direction;
	__u8 device;
	__u8 zero[2];
};
MAP(copies, HASH, struct copy_key, __u64, 4096);
__u64 copies_unread = 0; /* successful copies of which the bytes are not known */

#define UNREAD (~0ull)
#define MOST_UNREAD (1 << 20) /* of a call: a library of the process's own may take any number */

/* hip_Memcpy2D and hipMemcpy3DParms (driver_types.h). */
struct described {
	__u64 source[7], target[7];
	__u64 width, height;
};
struct described_3d {
	__u64 source_array, source_position[3], source[4];
	__u64 target_array, target_position[3], target[4];
	__u64 extent[3];
	__u32 kind, zero;
};

static __always_inline enum direction direction_of(__u32 kind)
{
	if (kind == 1024) /* hipMemcpyDeviceToDeviceNoCU of later releases */
		return direction_d2d;
	return kind < direction_d2d ? kind + 1 : direction_unknown; /* hipMemcpyDefault is 4 */
}

/* Bytes of a copy, and its direction in *direction. */
static __always_inline __u64 copied_rows(struct pt_regs *ctx, const struct function *function,
					 __u64 *direction)
{
	__u64 bytes = argument(ctx, function->bytes_at);

	*direction = function->kind_at ? direction_of(argument(ctx, function->kind_at)) : function->direction;
	return function->height_at ? bytes * argument(ctx, function->height_at) : bytes;
}

static __always_inline __u64 copied_3d(__u64 address, __u64 *direction)
{
	struct described_3d copy;

	if (!read_user(&copy, address) || copy.source_array || copy.target_array)
		return UNREAD; /* the width of arrays is in elements */
	*direction = direction_of(copy.kind);
	return copy.extent[0] * copy.extent[1] * copy.extent[2];
}

static __always_inline __u64 copied_described(__u64 address)
{
	__u64 extent[2];

	if (!read_user(&extent, address + __builtin_offsetof(struct described, width)))
		return UNREAD;
	return extent[0] * extent[1];
}

static __always_inline void count_unread(const struct call *call, enum effect effect)
{
	__u64 copies = effect == effect_copy_unsized ? call->arguments[1] : 1;

	add(&copies_unread, copies < MOST_UNREAD ? copies : MOST_UNREAD);
}

static __always_inline void count_copy(const struct call *call, enum effect effect)
{
	static const __u64 none;
	struct copy_key key = {
	    .tgid = call->thread.tgid, .direction = call->arguments[1], .device = call->device};
	__u64 *copied;

	if (call->arguments[0] == UNREAD) {
		count_unread(call, effect);
		return;
	}
	copied = lookup_or_init(copies, &key, &none);
	if (copied)
		add(copied, call->arguments[0]);
}
