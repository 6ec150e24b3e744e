/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Work requests sent one by one: those that took long or failed, at a bounded rate. exporter/verbs/spans.py reads them. */
#pragma once
#include "control.h"

#define NOT_NUMBERED (~0ull)
#define BYTES_UNKNOWN 0xffffffff /* no message is as long */
#define STATUS_FLUSHED 5 /* enum ibv_wc_status: an error before it, or the end of the QP, took it along */

struct verbs_span {
	struct qp_control qp; /* as it was at completion */
	__u64 begin_ns;	      /* posted; as end_ns if that is not known */
	__u64 end_ns;	      /* its completion was seen */
	__u64 bytes;	      /* or BYTES_UNKNOWN */
	__u64 message;	      /* number of those that the peer receives, from 0; NOT_NUMBERED */
	__u32 tgid;
	__u32 tid;
	__u32 opcode; /* enum ibv_wr_opcode, of a send that succeeded */
	__u32 status; /* enum ibv_wc_status */
	__u8 received;
	__u8 matched; /* which request it was is known: with its opcode, bytes and begin_ns */
	__u8 zero[6];
};
EVENTS(verbs_spans, struct verbs_span, 256 * 1024);
__u64 verbs_spans_woken_ns = 0;
__u64 verbs_spans_limited = 0; /* not sent, to keep to verbs_spans_per_second */

const volatile __u64 request_span_ns = 10000000;
const volatile __u64 verbs_spans_per_second = 100;

/* Receives wait for long as a rule: they get half of the spans at most. */
static __always_inline bool receives_left(__u64 now)
{
	static __u64 second, sent;

	if (second != now / 1000000000) {
		second = now / 1000000000;
		sent = 0;
	}
	if (__sync_fetch_and_add(&sent, 1) < (verbs_spans_per_second + 1) / 2)
		return true;
	add(&verbs_spans_limited, 1);
	return false;
}

/* A request that was posted at `posted_ns` (0: it is not known which one it was, nor its opcode and bytes) on the QP at
 * this address has completed. The data path calls it for every completion that it takes; few become spans. */
static __always_inline void send_verbs_span(__u64 qp, __u64 posted_ns, __u64 now, __u32 opcode, __u64 bytes,
					    __u32 status, __u64 message, bool received)
{
	struct thread thread = this_thread();
	struct qp_control *control;
	struct verbs_span *span;

	if (status == STATUS_FLUSHED || (!status && (!posted_ns || now - posted_ns < request_span_ns)))
		return;
	control = find_or_add_qp(qp, false);
	if (!control || (received && !receives_left(now)) ||
	    !within_limit(now, verbs_spans_per_second, &verbs_spans_limited))
		return;
	span = reserve(verbs_spans);
	if (!span)
		return;
	__builtin_memset(span, 0, sizeof(*span));
	__builtin_memcpy(&span->qp, control, sizeof(span->qp));
	span->begin_ns = posted_ns ? posted_ns : now;
	span->end_ns = now;
	span->bytes = bytes;
	span->message = message;
	span->tgid = thread.tgid;
	span->tid = thread.tid;
	span->opcode = opcode;
	span->status = status;
	span->received = received;
	span->matched = !!posted_ns;
	bpf_ringbuf_submit(span, wake_seldom(&verbs_spans, now, &verbs_spans_woken_ns));
}
