/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls: which one a probe was hit by, its counters, and the record of it between its beginning and its end. */
#pragma once
#include "contexts.h"
#include "linked.h"
#include "returns.bpf.h"

COOKIE()

static __always_inline struct thread this_thread(enum layer layer)
{
	__u64 id = bpf_get_current_pid_tgid();

	return (struct thread){.tgid = id >> 32, .tid = id, .layer = layer};
}

static __always_inline void count_call(__u64 thread, __u16 api)
{
	static const __u64 none;
	struct call_key key = {.tgid = thread >> 32, .api = api, .device = device_of(thread)};
	__u64 *count = row_of(calls, &key, &none);

	if (count)
		add(count, 1);
}

static __always_inline __u32 linked_row_of(enum effect effect, __u32 tgid)
{
	enum group group = group_of(effect);

	return group == group_none ? 0 : linked_row(group, tgid);
}

/* Whether links for one process count these calls of this process. */
static __always_inline bool has_own_links(enum effect effect, __u32 tgid)
{
	__u32 row = linked_row_of(effect, tgid);

	return row && !(row & LINKED_LEAVING);
}

/* What distinguishes the time since which returns of these calls are seen from earlier ones; 0 while they are not. */
static __always_inline __u32 returning_at(struct cookie cookie, __u32 tgid)
{
	__u32 row = linked_row_of(cookie.effect, tgid);

	if (!row || row & LINKED_LEAVING)
		return returning_of(cookie.library);
	return row & LINKED_BLIND ? 0 : row;
}

/* Whether a row in flight is of the time in which return probes have been attached: else its return was not seen. */
static __always_inline bool is_current(const struct flight *call, __u32 tgid)
{
	if (call->returning & LINKED_MARK)
		return call->returning == (linked_row_of(call->cookie.effect, tgid) & ~LINKED_LEAVING);
	return call->returning && call->returning == returning_of(call->cookie.library);
}

/* Whether a call of this kind changes what a process holds, or which context takes it along. */
static __always_inline bool changes_memory(enum effect effect)
{
	return (effect >= effect_allocate && effect <= effect_release) ||
	       (effect >= effect_context_create && effect <= effect_device_reset) ||
	       effect >= effect_capture_begin;
}

/* What the call does is not seen. */
static __always_inline void miss(const struct thread *thread, const struct flight *call)
{
	struct process *process = bpf_map_lookup_elem(&processes, &thread->tgid);

	bpf_map_delete_elem(&covered, &thread->tgid);
	if (!process || !changes_memory(call->cookie.effect))
		return; /* without a row for the process none of its memory is counted */
	lose_sight(process);
}

/* A call that will return: true if it is to be remembered, false if its return is not seen, a hooked function of its
 * layer made it, or it counts where it is passed on to.
 * One that never returned (longjmp, a cancelled thread) is recognised by a stack that is shorter now, or that has
 * something else where its return was; should two probes be on one function, the second finds what the first took. */
static __always_inline bool begin(struct pt_regs *ctx, struct thread *thread, struct flight *call)
{
	const struct flight *before;

	call->cookie = cookie_of(ctx);
	if (passes_on(call->cookie.library))
		return false;
	call->sp = PT_REGS_SP(ctx);
	*thread = this_thread(call->cookie.layer);
	count_call(thread_id(thread), call->cookie.api);
	call->returning = returning_at(call->cookie, thread->tgid);
	if (!call->returning)
		return false;
	if (is_beside(call->sp)) {
		miss(thread, call);
		return false;
	}
	before = bpf_map_lookup_elem(&in_flight, thread);
	if (before && !is_current(before, thread->tgid))
		before = NULL;
	if (before &&
	    (before->sp > call->sp || (before->sp == call->sp && before->cookie.api != call->cookie.api)) &&
	    may_return(before->sp))
		return false;
	if (before && before->sp == call->sp)
		call->taken = before->taken;
	call->start_ns = bpf_ktime_get_ns();
	call->arguments[0] = PT_REGS_PARM1(ctx);
	call->arguments[1] = PT_REGS_PARM2(ctx);
	call->arguments[2] = PT_REGS_PARM3(ctx);
	call->arguments[3] = PT_REGS_PARM4(ctx);
	call->arguments[4] = PT_REGS_PARM5(ctx);
	return true;
}

/* For a thread that has no row. */
static __always_inline bool put_flight(const struct thread *thread, const struct flight *call)
{
	static const struct process none;
	struct process *process = lookup_or_init(processes, &thread->tgid, &none);

	if (!process || !has_share(process->flights, flights, flights_most) ||
	    insert(in_flight, thread, call, BPF_NOEXIST))
		return false;
	add(&process->flights, 1);
	add(&flights, 1);
	return true;
}

static __always_inline void remove_flight(const struct thread *thread)
{
	struct process *process = bpf_map_lookup_elem(&processes, &thread->tgid);

	if (bpf_map_delete_elem(&in_flight, thread))
		return;
	add(&flights, -1);
	if (process)
		subtract_row(&process->flights);
	if (in_flight_full_tick)
		in_flight_full_tick = 0;
}

/* A row that is there already saves finding room for one, and giving it back: while few are taken, a thread keeps its
 * own. Rows of idle threads are a quarter of the table at most, so they leave room for calls of other threads. */
static __always_inline bool remember(const struct thread *thread, struct flight *call)
{
	struct flight *row = bpf_map_lookup_elem(&in_flight, thread);

	if (row) {
		call->kept = row->kept;
		*row = *call;
		return true;
	}
	call->kept = flights < flights_most / 4;
	if (put_flight(thread, call))
		return true;
	add(&in_flight_lost, 1);
	miss(thread, call);
	return false;
}

static __always_inline void end(const struct thread *thread, struct flight *call)
{
	if (call->kept)
		call->sp = 0;
	else
		remove_flight(thread);
}

static __always_inline struct error *new_error(const struct error_key *key)
{
	static const struct error none;
	const struct process *process = bpf_map_lookup_elem(&processes, &key->tgid);

	if (!process || process->rows[table_errors] < FAILURES)
		return new_row(errors, key, &none);
	add(&errors_lost, 1);
	return NULL;
}

static __always_inline void count_error(const struct thread *thread, __u16 api, __s32 code, __u64 now)
{
	struct error_key key = {
	    .tgid = thread->tgid, .api = api, .device = device_of(thread_id(thread)), .code = code};
	struct error *error = bpf_map_lookup_elem(&errors, &key);

	if (!error)
		error = new_error(&key);
	if (!error)
		return;
	add(&error->calls, 1);
	error->last_ns = now;
}

static __always_inline void count_wait(const struct thread *thread, __u16 api, __u64 ns)
{
	static const struct wait none;
	struct call_key key = {.tgid = thread->tgid, .api = api, .device = device_of(thread_id(thread))};
	struct wait *wait = row_of(waits, &key, &none);
	__u32 slot = duration_slot(ns, WAIT_FIRST, WAIT_SLOTS);

	if (!wait || slot >= WAIT_SLOTS)
		return;
	add(&wait->sum_ns, ns);
	add(&wait->slots[slot], 1);
}
