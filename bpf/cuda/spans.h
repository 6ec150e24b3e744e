/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Single calls that are worth a record, at a bounded rate. */
#pragma once
#include "contexts.h"

/* What a call turned out to have done; goes into its span. */
struct outcome {
	__u64 bytes;
	__u64 address;
	enum memory memory;
	enum direction direction;
	enum host host;
	__u8 zero;
	__u16 device; /* as in keys; 0: the current context's */
	__u16 unused;
};

static __always_inline bool worth_a_span(const struct flight *call, const struct outcome *outcome, __s32 code,
					 __u64 ns)
{
	if (code)
		return true;
	switch (call->cookie.effect) {
	case effect_wait:
		return ns >= wait_span_ns;
	case effect_copy:
	case effect_copy_2d:
	case effect_copy_3d:
	case effect_copy_batch:
		return outcome->bytes >= copy_span_bytes;
	default:
		return outcome->bytes && outcome->bytes >= allocation_span_bytes;
	}
}

/* So that a process that fails all the time leaves room for the spans of others. */
static __always_inline bool may_send(__u32 tgid, __u64 now)
{
	static const struct process none;
	struct process *process = lookup_or_init(processes, &tgid, &none);

	if (process && within_rate(&process->spans, now, spans_per_second))
		return within_limit(now, spans_per_second * 10, &spans_limited);
	add(&spans_limited, 1);
	return false;
}

static __always_inline void send_span(const struct thread *thread, const struct flight *call,
				      const struct outcome *outcome, __s32 code, __u64 now)
{
	struct span *span;

	if (!may_send(thread->tgid, now))
		return;
	span = reserve(cuda_spans);
	if (!span)
		return;
	*span = (struct span){.start_ns = call->start_ns,
			      .end_ns = now,
			      .bytes = outcome->bytes,
			      .address = outcome->address,
			      .context = current_context(thread),
			      .device = outcome->device
					    ? outcome->device
					    : device_of_context(thread->tgid, current_context(thread)),
			      .tgid = thread->tgid,
			      .tid = thread->tid,
			      .code = code,
			      .api = call->cookie.api,
			      .memory = outcome->memory,
			      .direction = outcome->direction,
			      .host = outcome->host};
	bpf_get_current_comm(span->comm, sizeof(span->comm));
	bpf_ringbuf_submit(span, wake_seldom(&cuda_spans, now, &cuda_spans_woken_ns));
}
