/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is counted of a call where it begins, and where it ends a group or a communicator. */
#pragma once
#include "groups.h"
#include "pending.h"

/* What a collective moves. AlltoAllv counts what goes to each rank; its bus bytes leave out what stays. */
static __always_inline void count_bytes(struct pt_regs *ctx, struct cookie cookie,
					const struct communicator *on, struct calls *calls)
{
	__u64 at = argument(ctx, cookie.count_at), count = at, own = 0, bytes;
	bool vector = cookie.effect == effect_vector;
	__s32 type = argument(ctx, vector ? cookie.comm_at - 1 : cookie.count_at + 1);

	if (vector && on) {
		count = sum_counts(at, on->who.nranks);
		own = read_u64(at + 8ull * on->who.rank);
	}
	bytes = bytes_of(count, type);
	if (bytes == UNREAD || (vector && !on)) {
		add(&calls->unsized, 1);
		return;
	}
	add(&calls->bytes, bytes);
	if (vector) /* another thread may write to the counts */
		add(&calls->bus_bytes, own < count ? bytes - own * type_bytes(type) : 0);
	else if (on)
		add(&calls->bus_bytes, bus_bytes(cookie.kind, bytes, on->who.nranks));
}

/* `now` is 0 in a group: its end is counted at its own time. */
static __always_inline struct calls *count_call(__u32 tgid, enum kind kind, __u64 now)
{
	static const struct calls none;
	struct call_key key = {.tgid = tgid, .kind = kind};
	struct calls *counted = lookup_or_init(calls, &key, &none);

	if (!counted)
		return NULL;
	add(&counted->calls, 1);
	if (now)
		counted->last_ns = now;
	return counted;
}

/* Numbers a call, and compares when it was made with when others of this number were; `now` is 0 in a group. */
static __always_inline void number(__u32 tgid, struct communicator *on, struct cookie cookie, __s32 peer,
				   bool captured, __u64 now)
{
	__u64 *numbered = calls_so_far(tgid, on, cookie.kind, peer, captured, true);

	if (!numbered)
		return;
	if (now && cookie.kind < kind_Send && !captured && origin_of(on, cookie.kind, captured))
		note_arrival(on, tgid, cookie.kind, number_of(on, cookie.kind, *numbered), now);
	add(numbered, 1);
}

static __always_inline void count_collective(struct pt_regs *ctx, __u32 tgid, struct cookie cookie,
					     struct caller *caller, __u64 now)
{
	struct communicator *on = communicator_at(tgid, cookie, argument(ctx, cookie.comm_at));
	__s32 peer = cookie.peer_at == NO_ARGUMENT ? -1 : argument(ctx, cookie.peer_at);
	struct calls *calls = count_call(tgid, cookie.kind, now);
	bool grouped = caller && caller->depth;

	if (on) {
		confirm_at_entry(tgid, on, cookie, argument(ctx, cookie.comm_at), grouped);
		if (!discarded(cookie, argument(ctx, cookie.count_at))) {
			if (grouped)
				wait_for_end(caller, on, argument(ctx, cookie.comm_at), cookie.kind);
			number(tgid, on, cookie, peer, caller && caller->capturing, grouped ? 0 : now);
		}
	}
	if (!calls)
		return;
	if (!on)
		add(&calls->anonymous, 1);
	if (cookie.effect != effect_signal)
		count_bytes(ctx, cookie, on, calls);
}

static __always_inline struct caller *caller_of(const struct thread *thread)
{
	static const struct caller none;

	return lookup_or_hold(callers, thread->tgid, thread, &none, MOST_CALLERS);
}

/* The same where all that the thread calls is seen: what it has open is known since the last gap. */
static __always_inline struct caller *whole_caller_of(const struct thread *thread)
{
	struct caller *caller = caller_of(thread);
	__u32 gap = gap_of(thread->tgid);

	if (caller && caller->gap != gap)
		leave_groups(caller, gap);
	return caller;
}

static __always_inline void end_caller(const struct thread *thread)
{
	struct held *rows;

	if (!bpf_map_lookup_elem(&callers, thread) || bpf_map_delete_elem(&callers, thread))
		return;
	rows = bpf_map_lookup_elem(&held, &thread->tgid);
	if (rows)
		subtract_row(&rows->callers);
	if (callers_full_tick)
		callers_full_tick = 0;
}

/* A null pointer in place of the estimate is no simulation: the library starts the calls (ncclGroupEndInternal). */
static __always_inline bool is_simulated(struct pt_regs *ctx, struct cookie cookie)
{
	return cookie.effect == effect_group_drop && PT_REGS_PARM1(ctx);
}

/* Whether a library of unknown layout, which may be a tracer with all of NCCL's functions, passes this call on: its call
 * of the same function has not returned, as its return address is in place. The return of a group's start is not probed,
 * so that it stays cheap, and a group of both libraries would never end. On arm64 the stack does not show that. */
static __always_inline bool is_passed_on(struct pt_regs *ctx, struct cookie cookie, struct caller *caller)
{
#if defined(__TARGET_ARCH_x86)
	__u64 sp = PT_REGS_SP(ctx), ip = PT_REGS_IP(ctx);

	if (caller->outer_sp && caller->outer_api == cookie.api && caller->outer_ip != ip &&
	    sp <= caller->outer_sp && read_u64(caller->outer_sp) == caller->outer_return)
		return true;
	caller->outer_sp = 0;
	if (cookie.layout)
		return false;
	caller->outer_return = read_u64(sp);
	caller->outer_sp = sp;
	caller->outer_ip = ip;
	caller->outer_api = cookie.api;
#endif
	return false;
}

static __always_inline void change_group(struct pt_regs *ctx, __u32 tgid, struct caller *caller,
					 struct cookie cookie, __u64 now)
{
	if (!caller || is_passed_on(ctx, cookie, caller))
		return;
	if (cookie.effect == effect_group_start) {
		if (caller->depth++) {
			count_call(tgid, kind_none, 0); /* for its cost */
			return;
		}
		caller->group_ns = now;
		caller->group_ticket = 0;
		caller->many = 0;
	} else if (!caller->depth) {
		count_call(tgid, kind_none, 0);
		mark_numbers_unsure(tgid);
	} else if (!--caller->depth && !is_simulated(ctx, cookie)) {
		count_call(tgid, kind_GroupEnd, now);
		for_grouped(caller, arrive, tgid, now);
	}
}

static __always_inline void count_hit(__u32 api)
{
	__u64 *seen = bpf_map_lookup_elem(&hits, &api);

	if (seen)
		add(seen, 1);
}

static __always_inline void count(struct pt_regs *ctx, __u32 tgid, struct cookie cookie,
				  struct caller *caller, __u64 now)
{
	count_hit(cookie.api);
	if (nested(ctx, tgid, caller))
		return;
	switch (cookie.effect) {
	case effect_collective:
	case effect_vector:
	case effect_signal:
		count_collective(ctx, tgid, cookie, caller, now);
		break;
	case effect_group_start:
	case effect_group_end:
	case effect_group_drop:
		change_group(ctx, tgid, caller, cookie, now);
		break;
	case effect_end:
		end_pending(tgid, argument(ctx, cookie.comm_at));
		end_communicator(tgid, argument(ctx, cookie.comm_at));
		break;
	default:
		break;
	}
}

/* In windows. Numbers are of no use there, as calls before and after are missing. */
static __always_inline struct calls *count_in_window(__u32 tgid, enum kind kind, __u64 now)
{
	static const __u64 none;
	struct call_key key = {.tgid = tgid, .kind = kind};
	__u64 *count = lookup_or_init(window_calls, &key, &none);

	if (count)
		add(count, 1);
	return count_call(tgid, kind, now);
}

static __always_inline void count_collective_in_window(struct pt_regs *ctx, __u32 tgid, struct cookie cookie,
						       __u64 now)
{
	struct communicator *on = communicator_at(tgid, cookie, argument(ctx, cookie.comm_at));
	struct calls *calls = count_in_window(tgid, cookie.kind, now);

	if (!calls)
		return;
	if (!on)
		add(&calls->anonymous, 1);
	if (cookie.effect != effect_signal)
		count_bytes(ctx, cookie, on, calls);
}

/* Groups count by their ends, as far as these are in the window. */
static __always_inline void change_group_in_window(struct pt_regs *ctx, __u32 tgid, struct caller *caller,
						   struct cookie cookie, __u64 now)
{
	bool outermost;

	if (!caller || is_passed_on(ctx, cookie, caller))
		return;
	enter_window(caller);
	if (cookie.effect == effect_group_start) {
		caller->cut = 0;
		if (caller->window_depth++)
			count_in_window(tgid, kind_none, 0);
		return;
	}
	outermost = caller->window_depth ? !--caller->window_depth : caller->cut;
	caller->cut = 0;
	if (outermost && !is_simulated(ctx, cookie))
		count_in_window(tgid, kind_GroupEnd, now);
}
