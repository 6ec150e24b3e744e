/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls by thread: which thread a program runs in, which return belongs to which entry, and how long a call took. */
#pragma once
#include "returns.bpf.h"

struct thread {
	__u32 tgid;
	__u32 tid;
};

static __always_inline struct thread this_thread(void)
{
	__u64 id = bpf_get_current_pid_tgid();

	return (struct thread){.tgid = id >> 32, .tid = id};
}

/* Whether the thread's call that began with the stack pointer `outer` made the one that begins with `sp`, directly or by
 * a jump that leaves the stack as it was: `same` if both are calls of one function, which a jump is not. A call that
 * never returned (longjmp, a cancelled thread) is recognised by a stack that is shorter now. */
static __always_inline bool made_by(__u64 outer, bool same, __u64 sp)
{
	return (outer > sp || (outer == sp && !same)) && may_return(outer);
}

/* At a return: whether it is that of the call that began with this stack pointer. */
static __always_inline bool is_return_of(__u64 sp, const struct pt_regs *ctx)
{
	return sp && sp + RETURN_POPS == PT_REGS_SP(ctx);
}

/* Slot 0 holds up to 2^-20 s (0.95 us), slot i up to 2^(i-20) s, the last one all above 2^16 s, 18 hours. */
#define DURATION_FIRST (-20)
#define DURATION_SLOTS 38
struct duration {
	__u64 sum_ns;
	__u64 slots[DURATION_SLOTS];
};

static __always_inline void add_duration(struct duration *to, __u64 ns)
{
	__u32 slot = duration_slot(ns, DURATION_FIRST, DURATION_SLOTS);

	if (!to || slot >= DURATION_SLOTS) /* the second for the verifier */
		return;
	add(&to->sum_ns, ns);
	add(&to->slots[slot], 1);
}

/* Errors of a process by function. */
struct error_key {
	__u32 tgid;
	__s32 code;
	__u8 api;
	__u8 device;
	__u8 zero[2];
};
struct error {
	__u64 calls;
	__u64 last_ns;
};

static __always_inline void add_error(struct error *to, __u64 now)
{
	if (!to)
		return;
	add(&to->calls, 1);
	to->last_ns = now;
}
