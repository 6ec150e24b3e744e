/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls: which one a probe was hit by, with which arguments, and what is counted of each. */
#pragma once
#include "arguments.h"
#include "held.h"

COOKIE()

#define IN_PROGRESS 7 /* ncclResult_t: no error, the work goes on */

/* Functions of their own, as are others that are not `static`: the verifier goes through each loop and each way once. */
__noinline int returns_at(__u32 tgid, __u32 returning, __u32 library)
{
	if (returning & LINKED_MARK)
		return returning == (linked_row(group_collectives, tgid) & ~LINKED_LEAVING);
	return returning && returning == returning_of(library);
}

/* Whether the return of a call is seen: probes may have been detached since it began. */
static __always_inline bool is_current(const struct flight *call, __u32 tgid)
{
	return returns_at(tgid, call->returning, call->cookie.library);
}

/* Whether a hooked function made this call: ncclAllToAll of RCCL is a group of ncclSend and ncclRecv, a library put
 * before NCCL ends in it. The same place on the same stack is this call, which another program of ours has seen. */
static __always_inline bool nested(struct pt_regs *ctx, __u32 tgid, const struct caller *caller)
{
	const struct flight *outer = &caller->call;

	return caller && outer->sp && is_current(outer, tgid) &&
	       made_by(outer->sp, outer->ip == PT_REGS_IP(ctx), PT_REGS_SP(ctx));
}

/* Bytes of an ncclDataType_t (nccl.h: int8, uint8, int32, uint32, int64, uint64, the floats of 16, 32 and 64 bits, bf16,
 * two fp8), 0 for those that came later. */
static __always_inline __u64 type_bytes(__s32 type)
{
	const __u64 log2_of_each = 0x001321332200; /* a digit a type, the first one last */

	return type >= 0 && type < 12 ? 1ull << (log2_of_each >> 4 * type & 0xf) : 0;
}

#define MOST_COUNTS 1024
#define UNREAD (~0ull)
#define MOST_BYTES                                                                                           \
	(1ull << 43) /* of a call: more than any GPU has, and a number still for 2 * MOST_RANKS of them */

/* The bytes of so many values of a type; UNREAD if the type is not known, or no call can move as many. NCCL looks at counts
 * seldom: -1 would take bytes away. */
static __always_inline __u64 bytes_of(__u64 count, __s32 type)
{
	__u64 each = type_bytes(type);

	return each && count <= MOST_BYTES / each ? count * each : UNREAD;
}

/* Counts that are added: `left` of them are at `at`, and at most 16 are added at once. */
struct sum {
	__u64 at, sum, all, failed;
	__u32 left;
	__u32 zero;
};

__noinline int add_some(struct sum *to)
{
	__u64 count;

	if (!to)
		return 0;
	for (int i = 0; i < 16 && to->left; i++, to->left--, to->at += sizeof(count)) {
		to->failed |= bpf_probe_read_user(&count, sizeof(count), (void *)to->at);
		to->sum += count;
		to->all |= count;
	}
	return 0;
}

/* The sum of an array of counts, or UNREAD. */
__noinline __u64 sum_counts(__u64 address, __u32 length)
{
	struct sum sum = {.at = address, .left = length};

	for (int i = 0; i < MOST_COUNTS / 16 && sum.left && !sum.failed; i++)
		add_some(&sum);
	return sum.left || sum.failed || sum.all >= MOST_BYTES ? UNREAD : sum.sum;
}

/* What nccl-tests calls the bytes of the bus, for one call (doc/PERFORMANCE.md there): what each rank has to move
 * whatever the algorithm. */
static __always_inline __u64 bus_bytes(enum kind kind, __u64 bytes, __u64 nranks)
{
	switch (kind) {
	case kind_AllReduce:
		return 2 * bytes * (nranks - 1) / nranks;
	case kind_AllGather:
	case kind_ReduceScatter:
	case kind_AlltoAll:
	case kind_Gather:
	case kind_Scatter:
		return bytes * (nranks - 1);
	default:
		return bytes;
	}
}

static __always_inline void count_error(__u32 tgid, __u8 api, __s32 code, __u64 now)
{
	static const struct error none;
	struct error_key key = {.tgid = tgid, .api = api, .code = code};

	add_error(lookup_or_hold(errors, tgid, &key, &none, MOST_ERRORS), now);
}

__noinline int count_duration(__u32 tgid, __u32 kind, __u64 ns)
{
	static const struct duration none;
	struct call_key key = {.tgid = tgid, .kind = kind};

	add_duration(lookup_or_init(durations, &key, &none), ns);
	return 0;
}
