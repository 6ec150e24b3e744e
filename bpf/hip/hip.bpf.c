/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls of AMD's HIP runtime. Launches are counted where they are called, since they do not block; all others where they
 * return, with what they did if they succeeded. */
#include "arguments.h"
#include "captures.h"
#include "copies.h"
#include "linked.h"
#include "memory.h"

struct api_key {
	__u32 tgid;
	enum api api;
	__u8 device;
	__u8 zero[2];
};
MAP(calls, HASH, struct api_key, __u64, 16384);
MAP(waits, HASH, struct api_key, struct duration, 4096);

/* last_ns is right to a tick of the kernel's clock. */
struct launch {
	__u64 calls;
	__u64 last_ns;
	__u64 last_tick;
};
MAP(launches, PERCPU_HASH, struct api_key, struct launch, 2048);

/* Height and depth of what hipMalloc3D allocates: a hipExtent, too large for registers. */
static __always_inline __u64 rows_of(struct pt_regs *ctx)
{
	__u64 extent[3] = {};
#if defined(__TARGET_ARCH_x86)
	__u64 at = PT_REGS_SP(ctx) + 8;
#else
	__u64 at = PT_REGS_PARM2(ctx);
#endif

	return read_user(&extent, at) ? extent[1] * extent[2] : 0;
}

/* Puts what the return needs into the record in flight: it has three arguments, and only the entry the others. */
static __always_inline void prepare(struct pt_regs *ctx, const struct function *function, struct call *call)
{
	__u64 direction = direction_unknown;

	switch (function->effect) {
	case effect_allocate_pitch:
		call->arguments[2] = argument(ctx, 3);
		break;
	case effect_allocate_extent:
		call->arguments[2] = rows_of(ctx);
		break;
	case effect_allocate:
		if (function->memory == memory_pool)
			allocate_in_order(ctx, call, function->stream == STREAMS_SEVERAL ? 3 : 2);
		break;
	case effect_free:
		if (function->memory == memory_pool)
			free_in_order(call);
		else
			take(call);
		break;
	case effect_copy:
		call->arguments[0] = copied_rows(ctx, function, &direction);
		call->arguments[1] = direction;
		break;
	case effect_copy_3d:
		call->arguments[0] = copied_3d(call->arguments[0], &direction);
		call->arguments[1] = direction;
		break;
	case effect_copy_described:
		call->arguments[0] = copied_described(call->arguments[0]);
		call->arguments[1] = direction;
		break;
	case effect_copy_unsized:
		call->arguments[0] = UNREAD;
		call->arguments[1] = function->copies ? argument(ctx, function->copies - 1) : 1;
		break;
	case effect_context:
		lose_device(&call->thread, effect_context);
		break;
	default:
		break;
	}
}

static __always_inline void allocated(const struct call *call, const struct function *function)
{
	__u64 address, bytes = call->arguments[1], made[2] = {};

	address = function->effect == effect_register ? call->arguments[0] : read_u64(call->arguments[0]);
	if (function->effect == effect_allocate_pitch)
		bytes = read_u64(call->arguments[1]) * call->arguments[2];
	if (function->effect == effect_allocate_extent)
		bytes = read_user(&made, call->arguments[0]) ? made[1] * call->arguments[2] : 0;
	if (bytes) /* hipMalloc(&p, 0) succeeds and allocates nothing */
		hold(call->thread.tgid, address, bytes, function->memory, call->device);
}

static __always_inline bool changes_memory(enum effect effect)
{
	return (effect >= effect_allocate && effect <= effect_free) || effect == effect_reset ||
	       effect >= effect_capture_begin;
}

/* A call did not return: its thread has ended in it, or left it by longjmp. What it did is not known. */
static void abandon(const struct call *call)
{
	enum effect effect = functions[call->cookie.api].effect;

	if (changes_memory(effect))
		lose_sight(call->thread.tgid);
	lose_device(&call->thread, effect);
}

UPROBE(on_enter)
{
	static const __u64 none;
	struct thread thread = this_thread();
	const struct call *before = flight_of(in_flight, &thread);
	struct call call, *row, left = {};
	const struct function *function;
	struct api_key key = {};
	__u64 *count;

	if (passes_on(cookie_of(ctx).library))
		return 0;
	if (before)
		left = (struct call){.thread = thread, .cookie = before->cookie};
	function = &functions[cookie_of(ctx).api];
	if (!enter(ctx, &call)) {
		lose_device(&thread, function->effect);
		return 0;
	}
	call.device = device_of_call(ctx, function->stream);
	key.tgid = call.thread.tgid;
	key.api = call.cookie.api;
	key.device = call.device;
	count = lookup_or_init(calls, &key, &none);
	if (count)
		add(count, 1);
	if (function->effect == effect_stream_destroy) {
		forget_stream(call.arguments[0]);
		end_capture(&call.thread, call.arguments[0]);
	}
	row = call.returning ? flight_of(in_flight, &call.thread) : NULL;
	if (row && before)
		abandon(&left);
	if (row) {
		row->device = call.device;
		prepare(ctx, function, row);
		return 0;
	}
	if (changes_memory(function->effect))
		lose_sight(call.thread.tgid);
	lose_device(&call.thread, function->effect);
	return 0;
}

AT_RETURN(on_return)
{
	static const struct duration none;
	__s32 code = PT_REGS_RC(ctx);
	const struct function *function;
	struct api_key key = {};
	struct call call;

	if (!leave(ctx, &call))
		return 0;
	function = &functions[call.cookie.api];
	if (code)
		count_error(&call, code);
	if (function->effect == effect_wait) {
		key.tgid = call.thread.tgid;
		key.api = call.cookie.api;
		key.device = call.device;
		add_duration(lookup_or_init(waits, &key, &none), bpf_ktime_get_ns() - call.start_ns);
	} else if (function->effect == effect_free) {
		if (code)
			put_back(&call);
		else
			complete_free(&call, function->memory);
	} else if (function->effect == effect_capture_end && has_ended_capture(code)) {
		complete_capture(&call);
	} else if (code) {
		return 0;
	} else if (function->effect >= effect_allocate && function->effect <= effect_register) {
		allocated(&call, function);
	} else if (function->effect >= effect_copy && function->effect <= effect_copy_unsized) {
		count_copy(&call, function->effect);
	} else if (function->effect == effect_reset) {
		reset_device(call.thread.tgid, call.device);
	} else if (function->effect == effect_set_device) {
		place(call.thread.tgid, call.thread.tid, device_of_ordinal(call.arguments[0]));
	} else if (function->effect == effect_stream_create) {
		made_stream(&call);
		end_capture(&call.thread,
			    read_u64(call.arguments[0])); /* of one with its handle, that a reset took */
	} else if (function->effect == effect_capture_begin) {
		begin_capture(&call);
	}
	return 0;
}

static __always_inline int count_launch(struct pt_regs *ctx, __u32 tgid)
{
	static const struct launch none;
	struct cookie cookie = cookie_of(ctx);
	struct api_key key = {.tgid = tgid, .api = cookie.api};
	__u32 api = key.api;
	__u64 tick = bpf_jiffies64(), *seen = bpf_map_lookup_elem(&hits, &api);
	struct launch *launch;

	if (passes_on(cookie.library))
		return 0;
	key.device = device_of_call(ctx, launch_streams[cookie.api]);
	launch = lookup_or_init(launches, &key, &none);
	if (seen)
		add(seen, 1);
	if (!launch)
		return 0;
	add(&launch->calls, 1);
	if (launch->last_tick != tick) {
		launch->last_tick = tick;
		launch->last_ns = bpf_ktime_get_ns();
	}
	return 0;
}

/* The hot path. */
UPROBE(on_launch)
{
	__u32 tgid = this_thread().tgid;

	return is_linked(0, tgid) ? 0 : count_launch(ctx, tgid);
}

/* In links for one process. */
UPROBE(on_launch_of_one)
{
	__u32 tgid = this_thread().tgid;

	return is_linked(0, tgid) ? count_launch(ctx, tgid) : 0;
}

FORGET(drop_ended(live); drop_ended(captured); FORGET_DEVICES();)

/* Run as `forget` is: a process was there before the probes. */
SEC("raw_tp")
int join(struct bpf_raw_tracepoint_args *ctx)
{
	add_streams(ctx->args[0], OLDER);
	return 0;
}
