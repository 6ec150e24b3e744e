/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls sent one by one, at a bounded rate: which ones is decided by what all ranks of a call know of it. */
#pragma once
#include "numbers.h"

/* What a call is among those of its kind on its communicator. */
struct place {
	const struct communicator *on; /* NULL if it is not known */
	__u64 sequence;
	enum origin origin;
	__u8 zero[7];
};

/* A communicator is used by one call at a time (nccl.h), so the newest number is this call's. */
static __always_inline struct place place_of(__u32 tgid, struct communicator *on, const struct flight *call,
					     bool captured)
{
	enum kind kind = call->cookie.kind;
	struct place place = {.on = on};
	__u64 *numbered;

	if (!on || discarded(call->cookie, call->count))
		return place;
	numbered = calls_so_far(tgid, on, kind, call->peer, captured, false);
	if (!numbered || !*numbered)
		return place;
	place.sequence = *numbered - 1;
	place.origin = origin_of(on, kind, captured);
	return place;
}

static __always_inline __u64 mix(__u64 a, __u64 b)
{
	a = (a ^ b) * SPREAD;
	a = (a ^ a >> 32) * 0xd6e8feb86659fd93ull;
	return a ^ a >> 32;
}

/* A number from 0 to 2^64 - 1, the same for all ranks of a call; of a group that of its first call. What belongs to no
 * other rank's has one by chance. */
static __always_inline __u64 ticket_of(struct caller *caller, const struct flight *call,
				       const struct place *place, bool captured)
{
	enum kind kind = call->cookie.kind;
	__u64 ticket, from, to;

	if (kind == kind_GroupEnd && caller->group_ticket)
		return caller->group_ticket;
	if (!place->on || !place->on->who.hash || (kind < COLLECTIVES && !place->origin)) {
		ticket = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
	} else if (kind == kind_Send || kind == kind_Recv) {
		from = kind == kind_Send ? place->on->who.rank : call->peer;
		to = kind == kind_Send ? call->peer : place->on->who.rank;
		ticket = mix(mix(place->on->who.hash, from << 32 | to), place->sequence << 8 | kind_Send);
	} else {
		ticket = mix(place->on->who.hash, place->sequence << 9 | captured << 8 | kind);
	}
	if (caller->depth && !caller->group_ticket)
		caller->group_ticket = ticket | 1;
	return ticket;
}

/* Whether a call is sampled: of all, half, a quarter, so many that those of the second before were within three quarters
 * of the limit, which leaves room for chance. What a busy node samples an idle one samples too. */
__noinline int sampled(__u64 ticket, __u64 now)
{
	static __u64 second, wanted, halvings;
	__u64 least = 0, most = spans_per_second - spans_per_second / 4;

	if (second != now / 1000000000) {
		second = now / 1000000000;
		least = log2_slot((wanted + most - 1) / most, 0, 64);
		wanted = 0;
		halvings = least < halvings ? halvings - 1 : least;
	}
	add(&wanted, 1);
	return !halvings || !(ticket >> (64 - (halvings & 63)));
}

static __always_inline void fill(struct span *span, const struct caller *caller, const struct flight *call,
				 const struct place *place)
{
	if (caller->depth || span->kind == kind_GroupEnd)
		span->group_ns = caller->group_ns;
	span->who = call->who;
	if (place->on) {
		span->who = place->on->who;
		span->communicator = place->on->since_ns;
	}
	span->sequence = place->sequence;
	span->origin = place->origin;
	if (call->cookie.effect == effect_collective)
		span->bytes = bytes_of(call->count, call->type);
	if (span->bytes == UNREAD)
		span->bytes = 0;
	bpf_get_current_comm(span->comm, sizeof(span->comm));
}

static __always_inline void send_span(const struct thread *thread, struct caller *caller,
				      struct communicator *on, __s32 code, __u64 now)
{
	const struct flight *call = &caller->call;
	bool captured = caller->capturing, partial;
	struct place place;
	struct span *span;

	if (!spans_per_second)
		return;
	place = place_of(thread->tgid, on, call, captured);
	partial = !sampled(ticket_of(caller, call, &place, captured), now);
	if (partial && (!code || code == IN_PROGRESS) && now - call->start_ns < slow_ns) {
		add(&spans_unsampled, 1);
		return;
	}
	if (!within_limit(now, spans_per_second, &spans_limited))
		return;
	span = reserve(nccl_spans);
	if (!span)
		return;
	*span = (struct span){.start_ns = call->start_ns,
			      .end_ns = now,
			      .stream = call->stream,
			      .tgid = thread->tgid,
			      .tid = thread->tid,
			      .code = code,
			      .type = call->type,
			      .peer = call->peer,
			      .api = call->cookie.api,
			      .kind = call->cookie.kind,
			      .depth = caller->depth < 255 ? caller->depth : 255,
			      .captured = captured,
			      .partial = partial};
	fill(span, caller, call, &place);
	bpf_ringbuf_submit(span, wake_seldom(&nccl_spans, now, &nccl_spans_woken_ns));
}
