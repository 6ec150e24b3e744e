/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* NCCL and RCCL calls: counted where they begin, timed and sent one by one where they return. One program runs at each
 * entry, as long as the library is probed: on_enter where on_return may run too, on_call where it does not, on_message at
 * a Send or Recv that is not timed. Functions that may be left out have on_collective and on_group in place of the first
 * two, and on_window in windows. */
#include "returned.h"

UPROBE(on_call)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();

	count(ctx, thread.tgid, cookie, whole_caller_of(&thread), bpf_ktime_get_ns());
	return 0;
}

static __always_inline int begin_group(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	struct caller *caller = whole_caller_of(&thread);

	count_hit(cookie.api);
	if (!nested(ctx, thread.tgid, caller))
		change_group(ctx, thread.tgid, caller, cookie, bpf_ktime_get_ns());
	return 0;
}

UPROBE(on_group)
{
	return is_linked(group_collectives, bpf_get_current_pid_tgid() >> 32) ? 0 : begin_group(ctx);
}

/* In links for one process, as all with such a name. */
UPROBE(on_group_of_one)
{
	return is_linked(group_collectives, bpf_get_current_pid_tgid() >> 32) ? begin_group(ctx) : 0;
}

/* In windows, in place of all others at functions that are left out: how often they are called, and with how much. */
UPROBE(on_window)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	__u32 index = cookie.api;
	struct caller *caller;
	__u64 *hits, now;

	if (is_linked(group_collectives, thread.tgid))
		return 0;
	count_hit(cookie.api);
	hits = bpf_map_lookup_elem(&windows, &index);
	if (hits)
		add(hits, 1);
	caller = caller_of(&thread);
	if (nested(ctx, thread.tgid, caller))
		return 0;
	now = bpf_ktime_get_ns();
	if (cookie.kind < COLLECTIVES)
		count_collective_in_window(ctx, thread.tgid, cookie, now);
	else
		change_group_in_window(ctx, thread.tgid, caller, cookie, now);
	return 0;
}

/* A Send or Recv: counted, and not distinguished from others of its kind. */
static __always_inline int count_message(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	const struct caller *caller = bpf_map_lookup_elem(&callers, &thread);
	struct calls *calls;
	bool grouped;
	__u64 bytes;

	count_hit(cookie.api);
	if (nested(ctx, thread.tgid, caller))
		return 0;
	grouped = caller && caller->depth && !misses_calls(thread.tgid, caller->gap);
	calls = count_call(thread.tgid, cookie.kind, grouped ? 0 : bpf_ktime_get_ns());
	if (!calls)
		return 0;
	if (!communicator_at(thread.tgid, cookie, argument(ctx, cookie.comm_at)))
		add(&calls->anonymous, 1);
	bytes = bytes_of(argument(ctx, cookie.count_at), argument(ctx, cookie.count_at + 1));
	if (bytes == UNREAD) {
		add(&calls->unsized, 1);
		return 0;
	}
	add(&calls->bytes, bytes);
	add(&calls->bus_bytes, bytes);
	return 0;
}

UPROBE(on_message)
{
	return is_linked(group_messages, bpf_get_current_pid_tgid() >> 32) ? 0 : count_message(ctx);
}

UPROBE(on_message_of_one)
{
	return is_linked(group_messages, bpf_get_current_pid_tgid() >> 32) ? count_message(ctx) : 0;
}

static __always_inline void begin(struct pt_regs *ctx, __u32 tgid, struct cookie cookie, struct flight *call,
				  __u64 now)
{
	const struct layout *layout = layout_of(cookie);

	*call = (struct flight){.cookie = cookie, .ip = PT_REGS_IP(ctx), .type = -1, .peer = -1};
	call->second = PT_REGS_PARM2(ctx);
	if (cookie.effect == effect_create) /* of a Split, Shrink or Grow: the parent communicator */
		call->second = PT_REGS_PARM1(ctx);
	if (cookie.comm_at != NO_ARGUMENT)
		call->comm = argument(ctx, cookie.comm_at);
	if (cookie.peer_at != NO_ARGUMENT)
		call->peer = argument(ctx, cookie.peer_at);
	if (spans_per_second && cookie.kind < COLLECTIVES)
		call->stream = argument(ctx, cookie.comm_at + 1);
	if (cookie.effect == effect_vector)
		call->type = argument(ctx, cookie.comm_at - 1);
	if (cookie.effect == effect_collective) {
		call->count = argument(ctx, cookie.count_at);
		call->type = argument(ctx, cookie.count_at + 1);
	}
	if (cookie.effect == effect_end)
		read_ended(tgid, cookie, call->comm, &call->who);
	if (cookie.effect == effect_init && layout && layout->hashless)
		read_arguments(ctx, &call->who);
	call->start_ns = now;
	call->sp = PT_REGS_SP(ctx);
}

/* Serves on_return where it is attached: `returning` distinguishes this time from earlier ones. */
static __always_inline int enter(struct pt_regs *ctx, struct cookie cookie, __u32 returning)
{
	struct thread thread = this_thread();
	struct caller *caller = whole_caller_of(&thread);
	__u64 now = bpf_ktime_get_ns();

	if (returning && is_beside(PT_REGS_SP(ctx)))
		returning = 0;
	if (caller && returning && !nested(ctx, thread.tgid, caller)) {
		begin(ctx, thread.tgid, cookie, &caller->call, now);
		caller->call.returning = returning;
	}
	cookie = cookie_of(ctx); /* else the verifier goes on once for each value that begin() found in it */
	count(ctx, thread.tgid, cookie, caller, now);
	if (caller && !returning && cookie.effect == effect_capture_begin)
		caller->capturing = 1;
	else if (caller && !returning && cookie.effect == effect_capture_end)
		caller->capturing = 0;
	else if (caller && !returning && !caller->depth && is_simulated(ctx, cookie))
		for_grouped(caller, lose_count, thread.tgid);
	return 0;
}

UPROBE(on_enter)
{
	struct cookie cookie = cookie_of(ctx);

	return enter(ctx, cookie, returning_of(cookie.library));
}

UPROBE(on_collective)
{
	struct cookie cookie = cookie_of(ctx);

	if (is_linked(group_collectives, bpf_get_current_pid_tgid() >> 32))
		return 0;
	return enter(ctx, cookie, returning_of(cookie.library));
}

UPROBE(on_collective_of_one)
{
	__u32 row = linked_row(group_collectives, bpf_get_current_pid_tgid() >> 32);

	if (!row || row & LINKED_LEAVING)
		return 0;
	return enter(ctx, cookie_of(ctx), row & LINKED_BLIND ? 0 : row);
}

AT_RETURN(on_return)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	struct caller *caller = bpf_map_lookup_elem(&callers, &thread);
	struct flight *call = &caller->call;
	struct comm_key key = {.tgid = thread.tgid};
	__s32 code = PT_REGS_RC(ctx);
	__u64 now;

	if (!caller || call->cookie.api != cookie.api || !is_return_of(call->sp, ctx) ||
	    !is_current(call, thread.tgid))
		return 0;
	call->sp = 0;
	if (cookie.effect >= effect_capture_begin) {
		count_captures(caller, cookie.effect, code);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (!code || code == IN_PROGRESS)
		apply(thread.tgid, caller, code);
	else
		count_error(thread.tgid, cookie.api, code, now);
	key.address = call->comm;
	if (cookie.effect == effect_async_error && !code)
		note_async_error(thread.tgid, call, now);
	else if (cookie.kind != kind_none && (cookie.effect != effect_group_end || !caller->depth))
		finish(&thread, caller, bpf_map_lookup_elem(&communicators, &key), code, now);
	if (!caller->depth && (cookie.effect == effect_group_end || cookie.effect == effect_group_drop))
		end_of_group(thread.tgid, caller, code, now);
	return 0;
}

THREAD_END
int on_thread_end(void *ctx __attribute__((unused)))
{
	struct thread thread = this_thread();

	end_caller(&thread);
	return 0;
}

EXEC int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct thread thread = this_thread();

	thread.tid = tid_before_exec(ctx);
	end_caller(&thread);
	return 0;
}

DROP(callers, struct thread)
DROP(pending, struct comm_key)

static long drop_communicator(void *map, const struct comm_key *at, struct communicator *on, void *unused)
{
	struct comm_key key = *at;

	(void)map, (void)unused;
	if (!has_ended(key.tgid))
		return 0;
	leave(key.tgid, on);
	bpf_map_delete_elem(&communicators, &key);
	return 0;
}

DROP(peers, struct peer_key)
DROP(window_calls, struct call_key)

static long drop_held(void *map, const __u32 *at, const void *value, void *unused)
{
	__u32 tgid = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(tgid))
		bpf_map_delete_elem(&held, &tgid);
	return 0;
}

/* Processes have ended, those in `ended`: a pid may be another's next. The counts are for the exporter to delete. */
SEC("raw_tp")
int forget(void *ctx __attribute__((unused)))
{
	drop_ended(callers);
	bpf_for_each_map_elem(&communicators, drop_communicator, NULL, 0);
	drop_ended(peers);
	drop_ended(pending);
	drop_ended(window_calls);
	bpf_for_each_map_elem(&held, drop_held, NULL, 0);
	return 0;
}

/* Collectives of a process are left out from now on. Run as `forget` is. */
SEC("raw_tp")
int lose_calls(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 tgid = ctx->args[0];

	bpf_for_each_map_elem(&communicators, lose_all, &tgid, 0);
	return 0;
}
