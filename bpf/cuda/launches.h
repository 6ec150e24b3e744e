/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Launches: their counts, and which of them go on to the program that takes stacks. */
#pragma once
#include "calls.h"

/* A place in a block of launches, from 0. */
static __always_inline __u32 random_place(void)
{
	return (__u64)bpf_get_prandom_u32() * launches_every >> 32;
}

/* Whether the launch that was just counted, or one before it, is to be sampled, and which one is next.
 *
 * Of each launches_every launches of a row one is sampled, at a random place: each launch with the same probability,
 * and their weights add up to the count within one block. At the others that costs a comparison in the cache line that
 * holds the count, where a random number at each launch takes 30 ns. Another thread of the CPU may have come in between:
 * it finds the next one, or loses the exchange. Where numbers of 32 bits begin again one block has another length. */
static __always_inline bool is_chosen(const struct launch *launch, struct launch_marks *marks)
{
	__u32 calls = launch->calls, was = marks->chosen, next;

	if ((__s32)(calls - was) < 0)
		return false;
	if (!was) { /* a new row */
		next = 1 + random_place();
		if (__sync_val_compare_and_swap(&marks->chosen, 0, next) || calls < next)
			return false;
		was = next;
	}
	next = ((was - 1) / launches_every + 1) * launches_every + 1 + random_place();
	return __sync_val_compare_and_swap(&marks->chosen, was, next + !next) == was;
}

static __always_inline int count_launch(struct pt_regs *ctx, __u64 id)
{
	static const struct launch none;
	struct cookie cookie = cookie_of(ctx);
	struct call_key key = {.tgid = id >> 32, .api = cookie.api, .device = device_of(id)};
	__u32 tick = bpf_jiffies64() << 1 | 1;
	struct launch_marks *marks;
	struct launch *launch;

	if (passes_on(cookie.library))
		return 0;
	launch = row_of(launches, &key, &none);
	if (!launch)
		return 0;
	marks = (void *)&launch->marks;
	add(&launch->calls, 1);
	if (marks->tick != tick) {
		marks->tick = tick;
		launch->last_ns = bpf_ktime_get_ns();
	}
	if (launches_every && cookie.layer == launches_of && is_chosen(launch, marks))
		bpf_tail_call(ctx, &launch_stacks, 0);
	return 0;
}
