/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What each call that succeeded has done, by the effect of its function. */
#pragma once
#include "calls.h"
#include "contexts.h"
#include "copies.h"
#include "mappings.h"
#include "memory.h"
#include "pools.h"
#include "streams.h"

/* The effect of a call that succeeded. */
static __always_inline void apply(const struct thread *thread, const struct flight *call, __u64 now,
				  struct outcome *outcome)
{
	__u64 context;

	switch (call->cookie.effect) {
	case effect_allocate:
	case effect_allocate_from:
	case effect_allocate_pitch:
	case effect_allocate_extent:
	case effect_register:
	case effect_create:
		allocate(thread, call, now, outcome);
		break;
	case effect_free:
	case effect_release:
		outcome->address = call->arguments[0];
		outcome->bytes = call->taken.bytes;
		outcome->memory = call->taken.memory;
		complete_free(thread, call);
		break;
	case effect_retain:
		retain(thread, call);
		break;
	case effect_map:
		map_handle(thread, call);
		break;
	case effect_unmap:
		unmap(thread, call);
		break;
	case effect_copy:
		copy_plain(thread->tgid, call, outcome);
		break;
	case effect_copy_2d:
	case effect_copy_3d:
		copy_described(thread->tgid, call, outcome);
		break;
	case effect_copy_batch:
		copy_batch(thread->tgid, call, outcome);
		break;
	case effect_copy_unread:
		add_unread(call->cookie.bytes_at == NO_ARGUMENT ? 1 : argument(call, call->cookie.bytes_at));
		break;
	case effect_context_create:
		context = read_u64(call->arguments[0]);
		use_device(thread->tgid, context, argument(call, call->cookie.bytes_at));
		change_context(thread, effect_context_push, context);
		break;
	case effect_context_destroy:
		context = call->arguments[0];
		end_context(thread->tgid, context, now);
		forget_context(thread->tgid, context);
		if (current_context(thread) == context)
			change_context(thread, effect_context_pop, 0);
		break;
	case effect_primary_retain:
		retain_primary(thread, call);
		break;
	case effect_primary_release:
	case effect_primary_reset:
	case effect_device_reset:
		context = call->cookie.effect == effect_device_reset ? current_context(thread)
								     : ended_primary(thread, call);
		if (context)
			end_context(thread->tgid, context, now);
		else if (call->cookie.effect != effect_primary_release)
			end_unknown_context(thread->tgid);
		break;
	case effect_pool_create:
	case effect_pool_at:
	case effect_pool_of_device:
	case effect_pool_import:
		note_pool(thread, call, now);
		break;
	case effect_pool_destroy:
		destroy_pool(thread, call);
		break;
	case effect_stream_create:
		note_stream(thread, call);
		break;
	case effect_capture_begin:
		begin_capture(thread, call->arguments[0]);
		break;
	default:
		break;
	}
}
