/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is known of a call where it returns. */
#pragma once
#include "counts.h"
#include "spans.h"

#define MOST_CREATED 64

/* The call returned ncclSuccess or ncclInProgress: the communicator that it made exists, but may not be ready. */
static __always_inline void apply(__u32 tgid, struct caller *caller, __s32 code)
{
	struct flight *call = &caller->call;

	switch (call->cookie.effect) {
	case effect_create:
	case effect_init:
		call->comm = read_u64(call->comm); /* from here on the communicator itself */
		if (call->who.hash)
			created_by_id(tgid, call->comm, call->who.hash,
				      (__u64)call->who.nranks << 32 | (__u32)call->who.rank, caller->depth);
		else
			created(tgid, call->cookie.layout, call->comm);
		note_creation(tgid, call, code);
		break;
	case effect_create_many:
		for (__u32 i = 0; i < MOST_CREATED && i < (__u32)call->second; i++)
			created(tgid, call->cookie.layout, read_u64(call->comm + 8 * i));
		break;
	default:
		break;
	}
}

/* The library refused the call: the next one has its number, as it has for the library. */
static __always_inline void take_back(__u32 tgid, const struct caller *caller, struct communicator *on)
{
	const struct flight *call = &caller->call;
	bool captured = caller->capturing;
	__u64 *numbered = calls_so_far(tgid, on, call->cookie.kind, call->peer, captured, false);

	if (!numbered || !*numbered)
		return;
	add(numbered, -1);
	if (caller->depth) {
		take_from_group(caller, on, captured ? CAPTURED : call->cookie.kind);
		return;
	}
	if (call->cookie.kind < kind_Send && !captured)
		forget_arrival(on, call->cookie.kind, *numbered, call->start_ns);
}

/* cuda.h: a capture that went wrong is over too when its end is called. */
#define CAPTURE_INVALIDATED 901
#define CAPTURE_UNJOINED 904

/* A call of the driver. */
static __always_inline void count_captures(struct caller *caller, enum effect effect, __s32 code)
{
	if (effect == effect_capture_begin)
		caller->capturing += !code;
	else if (caller->capturing && (!code || code == CAPTURE_INVALIDATED || code == CAPTURE_UNJOINED))
		caller->capturing--;
}

/* The outermost group ended. A simulation starts the calls on non-blocking communicators (groupLaunchNonBlocking). */
static __always_inline void end_of_group(__u32 tgid, struct caller *caller, __s32 code, __u64 now)
{
	bool failed = code && code != IN_PROGRESS;
	bool simulated = caller->call.cookie.effect == effect_group_drop && caller->call.comm;

	if (!simulated) {
		if (failed)
			for_grouped(caller, lose_count, tgid);
	} else if (code == IN_PROGRESS) {
		for_grouped(caller, arrive, tgid, now);
	} else {
		for_grouped(caller, take_back_grouped, tgid);
	}
	caller->many = 0;
}

/* A call that is timed returned, with the communicator that it was on, if that is known. */
static __always_inline void finish(const struct thread *thread, struct caller *caller,
				   struct communicator *on, __s32 code, __u64 now)
{
	struct flight *call = &caller->call;
	struct cookie cookie = call->cookie;
	bool numbered = on && cookie.kind < COLLECTIVES && !discarded(cookie, call->count);

	count_duration(thread->tgid, cookie.kind, now - call->start_ns);
	if (numbered)
		confirm_at_return(thread->tgid, on, cookie, call->comm);
	send_span(thread, caller, on, code, now);
	if (numbered && code && code != IN_PROGRESS)
		take_back(thread->tgid, caller, on);
}
