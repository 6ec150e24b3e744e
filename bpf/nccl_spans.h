/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls told one by one, at a bounded rate. */
#pragma once
#include "nccl_comms.h"

/* A communicator is used by one call at a time (nccl.h), so the newest number is this call's. */
static __always_inline void fill_communicator(struct span *span, const struct flight *call)
{
	struct comm_key key = {.tgid = span->tgid, .address = call->comm};
	struct communicator *on = bpf_map_lookup_elem(&communicators, &key);
	__u64 *numbered;

	span->who = call->who;
	if (!on)
		return;
	span->who = on->who;
	span->communicator = on->since_ns;
	if (discarded(call->cookie, call->count))
		return;
	numbered = calls_so_far(span->tgid, on, span->kind, span->peer, span->captured);
	if (!numbered || !*numbered)
		return;
	span->sequence = *numbered - 1;
	span->origin = origin_of(on, span->kind, span->captured);
}

static __always_inline void send_span(const struct thread *thread, const struct caller *caller, __s32 code,
				      __u64 now)
{
	const struct flight *call = &caller->call;
	struct span *span;

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
			      .captured = caller->capturing > 0};
	if (caller->depth || span->kind == kind_GroupEnd)
		span->group_ns = caller->group_ns;
	fill_communicator(span, call);
	if (call->cookie.effect == effect_collective)
		span->bytes = call->count * type_bytes(call->type);
	bpf_get_current_comm(span->comm, sizeof(span->comm));
	bpf_ringbuf_submit(span, 0);
}
