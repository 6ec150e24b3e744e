/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* CUDA calls at both layers, driver and runtime: one program for a way to hook a call, with its
 * function in the cookie. */
#include "calls.h"
#include "contexts.h"
#include "copies.h"
#include "effects.h"
#include "ended.h"
#include "gaps.h"
#include "launches.h"
#include "memory.h"
#include "spans.h"
#include "streams.h"

/* The hot path. */
UPROBE(on_launch)
{
	__u64 id = bpf_get_current_pid_tgid();

	return is_linked(group_launches, id >> 32) ? 0 : count_launch(ctx, id);
}

/* In links for one process. */
UPROBE(on_launch_of_one)
{
	__u64 id = bpf_get_current_pid_tgid();

	return is_linked(group_launches, id >> 32) ? count_launch(ctx, id) : 0;
}

UPROBE(on_call)
{
	struct cookie cookie = cookie_of(ctx);

	if (!passes_on(cookie.library))
		count_call(bpf_get_current_pid_tgid(), cookie.api);
	return 0;
}

/* A change of the current context is taken to succeed: these calls are frequent, and one that fails is a bug. They are
 * not counted, for the same reason. */
UPROBE(on_context)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread(cookie.layer);

	if (!passes_on(cookie.library))
		change_context(&thread, cookie.effect, PT_REGS_PARM1(ctx));
	return 0;
}

/* Whether this program counts the call: the one in links for one process or the one in those for all. */
static __always_inline bool counts(void *ctx, bool of_one)
{
	return has_own_links(cookie_of(ctx).effect, bpf_get_current_pid_tgid() >> 32) == of_one;
}

static __always_inline int enter(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	struct flight call = {};
	struct thread thread;

	if (cookie.effect == effect_stream_destroy && !passes_on(cookie.library))
		forget_stream(bpf_get_current_pid_tgid() >> 32, PT_REGS_PARM1(ctx));
	if (!begin(ctx, &thread, &call))
		return 0;
	if (allocates_in_graph(&thread, &call))
		call.cookie.effect = effect_graph_node;
	remember(&thread, &call);
	return 0;
}

static __always_inline int enter_free(struct pt_regs *ctx)
{
	struct flight call = {};
	struct thread thread;

	if (!begin(ctx, &thread, &call))
		return 0;
	take(&thread, &call);
	if (frees_in_graph(&thread, &call))
		call.cookie.effect = effect_graph_node;
	if (!remember(&thread, &call))
		put_back(&thread, &call);
	return 0;
}

/* These count the call, and serve on_return where it is attached. */
UPROBE(on_enter)
{
	return counts(ctx, false) ? enter(ctx) : 0;
}

UPROBE(on_free)
{
	return counts(ctx, false) ? enter_free(ctx) : 0;
}

UPROBE(on_enter_of_one)
{
	return counts(ctx, true) ? enter(ctx) : 0;
}

UPROBE(on_free_of_one)
{
	return counts(ctx, true) ? enter_free(ctx) : 0;
}

/* In windows, in place of all the others at functions that are left out: how often they are called, and no more. */
UPROBE(on_window)
{
	struct cookie cookie = cookie_of(ctx);

	if (counts(ctx, false) && !passes_on(cookie.library))
		count_in_window(bpf_get_current_pid_tgid(), cookie.api);
	return 0;
}

AT_RETURN(on_return)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread(cookie.layer);
	struct flight *call = bpf_map_lookup_elem(&in_flight, &thread);
	struct outcome outcome = {};
	__s32 code = PT_REGS_RC(ctx);
	__u64 now = bpf_ktime_get_ns();

	if (!call || call->cookie.api != cookie.api || call->sp + RETURN_POPS != PT_REGS_SP(ctx) ||
	    !is_current(call, thread.tgid))
		return 0;
	if (!code)
		apply(&thread, call, now, &outcome);
	else if (cookie.effect == effect_free || cookie.effect == effect_release)
		put_back(&thread, call);
	if (cookie.effect == effect_capture_end && has_ended_capture(code))
		complete_capture(&thread, call);
	if (cookie.effect == effect_wait)
		count_wait(&thread, cookie.api, now - call->start_ns);
	if (code)
		count_error(&thread, cookie.api, code, now);
	if (profiled && code == OUT_OF_MEMORY)
		send_out_of_memory(&thread, call);
	if (worth_a_span(call, &outcome, code, now - call->start_ns))
		send_span(&thread, call, &outcome, code, now);
	end(&thread, call);
	return 0;
}

/* Serves functions that have no on_enter: whether the call failed. */
AT_RETURN(on_failure)
{
	struct flight call = {.cookie = cookie_of(ctx)};
	struct thread thread = this_thread(call.cookie.layer);
	struct outcome outcome = {};
	__s32 code = PT_REGS_RC(ctx);

	if (!code || passes_on(call.cookie.library))
		return 0;
	call.start_ns = bpf_ktime_get_ns();
	count_error(&thread, call.cookie.api, code, call.start_ns);
	send_span(&thread, &call, &outcome, code, call.start_ns);
	return 0;
}

static __always_inline void end_thread(struct thread thread)
{
	__u64 id = thread_id(&thread);

	thread.layer = layer_driver;
	if (bpf_map_lookup_elem(&in_flight, &thread))
		remove_flight(&thread);
	thread.layer = layer_runtime;
	if (bpf_map_lookup_elem(&in_flight, &thread))
		remove_flight(&thread);
	if (bpf_map_lookup_elem(&contexts, &id))
		bpf_map_delete_elem(&contexts, &id);
	if (profiled) {
		bpf_map_delete_elem(&stack_ids, &thread);
		thread.layer = layer_driver;
		bpf_map_delete_elem(&stack_ids, &thread);
	}
}

THREAD_END
int on_thread_end(void *ctx __attribute__((unused)))
{
	end_thread(this_thread(layer_driver));
	return 0;
}

/* Until the exporter has noticed, rows of the program before and of this one have the same keys. */
EXEC int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct thread thread = this_thread(layer_driver);
	struct process *process = bpf_map_lookup_elem(&processes, &thread.tgid);

	thread.tid = tid_before_exec(ctx);
	end_thread(thread);
	bpf_map_delete_elem(&covered, &thread.tgid);
	if (process)
		lose_sight(process);
	return 0;
}

/* Processes have ended, those in `ended`: a pid may be another's next. The counts are for the exporter to delete. (A
 * "syscall" program may sleep, so it may not use the maps this one does.) */
SEC("raw_tp")
int forget(void *ctx __attribute__((unused)))
{
	struct sweep sweep = {};
	__u64 held = 0;

	bpf_for_each_map_elem(&ended, add_live, &held, 0);
	if (held)
		bpf_for_each_map_elem(&live, drop, &sweep, 0);
	bpf_for_each_map_elem(&in_flight, drop_flight, NULL, 0);
	bpf_for_each_map_elem(&contexts, drop_context, NULL, 0);
	drop_ended(primaries);
	drop_ended(context_devices);
	drop_ended(pools);
	drop_ended(streams);
	drop_ended(captured);
	drop_ended(window_calls);
	bpf_for_each_map_elem(&ended, drop_process, NULL, 0);
	return 0;
}

/* Calls that allocate and free are not seen in a process any more. Run as `forget` is. */
SEC("raw_tp")
int lose_allocations(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 tgid = ctx->args[0];

	bpf_for_each_map_elem(&live, lose_live, &tgid, 0);
	bpf_for_each_map_elem(&in_flight, lose_flight, &tgid, 0);
	return 0;
}

/* What a record of context_ends is sent for, run as `forget` is. */
SEC("raw_tp")
int sweep(struct bpf_raw_tracepoint_args *ctx)
{
	return sweep_live(ctx->args[0], ctx->args[1], ctx->args[2]);
}
