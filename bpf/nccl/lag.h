/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which of a node's ranks are late: when each calls a collective, against the first of them. */
#pragma once
#include "numbers.h"

#define MINUTE 60000000000ull

/* `who` is the rank, and above it the number of ranks. */
__noinline int count_lag(__u32 tgid, __u64 hash, __u64 who, __u64 domain, __u64 ns)
{
	static const struct lag none;
	struct lag_key key = {.hash = hash, .tgid = tgid, .rank = who, .nranks = who >> 32};
	struct lag *lag = lookup_or_hold(lags, tgid, &key, &none, MOST_LAGS);
	__u32 slot = (duration_slot(ns, LAG_FIRST, 64) + 1) / 2;

	if (!lag)
		return 0;
	if (slot >= LAG_SLOTS)
		slot = LAG_SLOTS - 1;
	lag->domain = domain;
	add(&lag->sum_ns, ns);
	add(&lag->slots[slot], 1);
	return 0;
}

/* The number of a call among those that all ranks make in one order; of the kinds that the library does not count each
 * by itself, for their numbers may be known where those of the others are not. */
static __always_inline __u64 number_of(const struct communicator *on, enum kind kind, __u64 sequence)
{
	const __u64 *calls = on->calls;

	return kind < COUNTED_BY_NCCL ? calls[0] + calls[1] + calls[2] + calls[3] + calls[4] : sequence;
}

static __always_inline __u64 arrival(__u64 number, __u64 at)
{
	return at >> ARRIVAL_SHIFT << 16 | (number & 0xffff);
}

#define LAPPED (~0ull)

/* When the first rank called, on this node, or LAPPED if that is not known: there were too many calls since, or no room. */
static __always_inline __u64 first_arrival(__u32 tgid, struct communicator *on, enum kind kind, __u64 number,
					   __u64 now)
{
	struct meeting *meeting = meeting_of(tgid, on, kind, number);
	__u64 *slot, before, mine = arrival(number, now);
	__u64 at;
	__s16 ahead;
	bool complete;

	if (!meeting)
		return LAPPED;
	complete = number >= meeting->from && !meeting->away;
	slot = &meeting->arrivals[number % ARRIVALS];
	before = *(volatile __u64 *)slot;
	for (int attempt = 0; attempt < 2; attempt++) {
		at = before >> 16 << ARRIVAL_SHIFT;
		ahead = (__s16)(number - before);
		if (at && !ahead)
			return complete ? at : LAPPED;
		if (at && ahead < 0 && at + MINUTE > on->since_ns)
			return LAPPED;
		at = __sync_val_compare_and_swap(slot, before, mine);
		if (at == before)
			return complete ? now : LAPPED;
		before = at; /* another CPU was faster */
	}
	return LAPPED;
}

CHECKED_ONCE int note_arrival(struct communicator *on, __u32 tgid, enum kind kind, __u64 number, __u64 now)
{
	__u64 first;

	if (!on || on->reused)
		return 0;
	first = first_arrival(tgid, on, kind, number, now);
	if (first != LAPPED)
		count_lag(tgid, on->who.hash, (__u64)on->who.nranks << 32 | (__u32)on->who.rank, on->domain,
			  now > first ? now - first : 0);
	return 0;
}

/* The library refused a call: who makes it again, or makes it at all, is the first. The number before it is none of
 * this slot's, so that all later calls replace it and earlier ones do not. */
static __always_inline void forget_arrival(struct communicator *on, enum kind kind, __u64 sequence,
					   __u64 then)
{
	__u32 at = kind < COUNTED_BY_NCCL ? 0 : kind;
	struct meeting_key key = meeting_key_of(on, at);
	__u64 number = number_of(on, kind, sequence);
	struct meeting *meeting;

	if (!(on->met & 1u << at))
		return;
	meeting = bpf_map_lookup_elem(&meetings, &key);
	if (meeting)
		__sync_val_compare_and_swap(&meeting->arrivals[number % ARRIVALS], arrival(number, then),
					    arrival(number - 1, then));
}
