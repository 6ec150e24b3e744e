/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Gaps, in which the collectives of a process are not all seen, as they cost more than their bound (exporter/governor):
 * the numbers of calls, and which groups are open, are not known after one. The exporter changes a process's row before
 * the first call is missed, and after it has seen to it that none is any more. */
#pragma once
#include "nccl.h"

/* A number for the time since the last such change: odd in a gap. Of a process that the exporter does not know yet
 * calls may be missing wherever another one's are left out. A function of its own, as is misses_calls(): each branch here
 * would be one more way through the programs for the verifier. */
__noinline __u32 gap_of(__u32 tgid)
{
	__u32 at = 0;
	const __u32 *state = bpf_map_lookup_elem(&gap_state, &at), *row;

	if (!state || *state == gap_none_yet)
		return 0;
	row = bpf_map_lookup_elem(&gaps, &tgid);
	return row ? *row : *state == gap_open;
}

/* Whether a call is missing at present, or was since this was written down. */
__noinline int misses_calls(__u32 tgid, __u32 gap)
{
	__u32 now = gap_of(tgid);

	return now & 1 || now != gap;
}

/* Forgets which groups a thread has open. Captures are seen all the time. */
static __always_inline void leave_groups(struct caller *caller, __u32 gap)
{
	caller->gap = gap;
	caller->depth = 0;
	caller->group_ns = 0;
	caller->group_ticket = 0;
	caller->many = 0;
	caller->outer_sp = 0;
}

/* The same where a window begins: the first thing that is seen of a group may be its end. */
static __always_inline void enter_window(struct caller *caller)
{
	__u32 at = 1;
	const __u32 *window = bpf_map_lookup_elem(&gap_state, &at);

	if (!window || caller->window == *window)
		return;
	caller->window = *window;
	caller->window_depth = 0;
	caller->cut = 1;
}
