/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The calls of a group, which NCCL starts when the outermost one ends: that is when a rank arrives. */
#pragma once
#include "lag.h"

/* A call in a group begins. */
static __always_inline void wait_for_end(struct caller *caller, struct communicator *on, __u64 address,
					 enum kind kind)
{
	__u32 many = caller->many, at = caller->capturing ? CAPTURED : kind;

	if (on->group_ns != caller->group_ns) {
		if (many >= MOST_GROUPED) {
			on->origin = origin_unknown; /* nobody would know whether its calls were started */
			return;
		}
		__builtin_memset(on->waiting, 0, sizeof(on->waiting));
		on->group_ns = caller->group_ns;
		caller->grouped[many] = address;
		caller->many = many + 1;
	}
	barrier_var(at);
	on->waiting[at % NUMBERED]++;
}

/* The library refused a call of an open group. */
static __always_inline void take_from_group(const struct caller *caller, struct communicator *on, __u32 at)
{
	barrier_var(at);
	at %= NUMBERED;
	if (on->group_ns == caller->group_ns && on->waiting[at])
		on->waiting[at]--;
}

static __always_inline struct communicator *grouped_at(__u32 tgid, __u64 address, __u64 group_ns)
{
	struct comm_key key = {.tgid = tgid, .address = address};
	struct communicator *on = bpf_map_lookup_elem(&communicators, &key);

	return on && on->group_ns == group_ns ? on : NULL; /* else it ended in the group */
}

struct arriving {
	struct communicator *on;
	__u64 first;
	__u64 now;
	__u32 tgid;
	enum kind kind;
	__u8 zero[3];
};

static long arrive_once(__u32 step, struct arriving *of)
{
	note_arrival(of->on, of->tgid, of->kind, of->first + step, of->now);
	return 0;
}

/* The library starts a group's calls on a communicator. */
__noinline int arrive(__u32 tgid, __u64 address, __u64 group_ns, __u64 now)
{
	struct communicator *on = grouped_at(tgid, address, group_ns);
	struct arriving of = {.on = on, .now = now, .tgid = tgid};

	if (!on)
		return 0;
	for (__u32 kind = COUNTED_BY_NCCL - 1; kind < kind_Send; kind++) {
		const __u32 *waiting = on->waiting;
		__u64 many = waiting[kind];

		of.kind = kind;
		if (kind < COUNTED_BY_NCCL)
			many += waiting[0] + waiting[1] + waiting[2] + waiting[3];
		if (!many || !origin_of(on, kind, false))
			continue;
		of.first = number_of(on, kind, on->calls[kind]) - many;
		if (many > ARRIVALS) {
			of.first += many - ARRIVALS;
			many = ARRIVALS;
		}
		bpf_loop(many, arrive_once, &of, 0);
	}
	__builtin_memset(on->waiting, 0, sizeof(on->waiting));
	return 0;
}

/* It was only simulated: the next calls have the numbers of these, as on ranks that did not simulate. */
__noinline int take_back_grouped(__u32 tgid, __u64 address, __u64 group_ns)
{
	struct communicator *on = grouped_at(tgid, address, group_ns);

	if (!on)
		return 0;
	for (__u32 at = 0; at < NUMBERED; at++)
		on->calls[at] -= on->waiting[at];
	if (on->waiting[kind_Send] || on->waiting[kind_Recv])
		on->unpaired = 1;
	__builtin_memset(on->waiting, 0, sizeof(on->waiting)); /* the group may have this address twice */
	return 0;
}

/* Nobody knows which calls of the group were started: this rank is not compared any more, nor others with it. */
__noinline int lose_count(__u32 tgid, __u64 address, __u64 group_ns)
{
	struct communicator *on = grouped_at(tgid, address, group_ns);

	if (!on)
		return 0;
	on->origin = origin_unknown;
	for (__u32 at = 0; at < kind_Send; at++) {
		struct meeting_key key = meeting_key_of(on, at);
		struct meeting *meeting = on->met & 1u << at ? bpf_map_lookup_elem(&meetings, &key) : NULL;
		__u64 next = number_of(on, at, on->calls[at]);

		if (meeting && meeting->from < next)
			meeting->from = next;
	}
	return 0;
}

#define for_grouped(caller, what, tgid, ...)                                                                 \
	for (__u32 i_ = 0; i_ < MOST_GROUPED && i_ < (caller)->many; i_++)                                   \
	what(tgid, (caller)->grouped[i_], (caller)->group_ns, ##__VA_ARGS__)

static long mark_unsure(void *map, const struct comm_key *at, struct communicator *on, const __u32 *tgid)
{
	(void)map;
	if (at->tgid == *tgid && on->origin == origin_library)
		on->unsure = 1;
	return 0;
}

/* A group ends of which the beginning was not seen: what was numbered in it may be wrong. */
static __always_inline void mark_numbers_unsure(__u32 tgid)
{
	bpf_for_each_map_elem(&communicators, mark_unsure, &tgid, 0);
	asm volatile(""); /* or clang makes one call of this and another map's, which Linux 6.1 refuses */
}
