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

/* A request that has completed. */
struct completed {
	__u64 qp;	 /* the address of the struct ibv_qp */
	__u64 posted_ns; /* 0: it is not known which one it was, nor its opcode and bytes */
	__u64 now, bytes, message;
	__u32 opcode, status;
	__u32 received;
	__u32 zero;
};

/* Not inlined: verified once. */
__noinline int send_completed(struct completed *request)
{
	struct thread thread = this_thread();
	struct qp_control *control;
	struct verbs_span *span;

	if (!request)
		return 0;
	control = find_or_add_qp(request->qp, false);
	if (!control || (request->received && !receives_left(request->now)) ||
	    !within_limit(request->now, verbs_spans_per_second, &verbs_spans_limited))
		return 0;
	span = reserve(verbs_spans);
	if (!span)
		return 0;
	__builtin_memset(span, 0, sizeof(*span));
	__builtin_memcpy(&span->qp, control, sizeof(span->qp));
	span->begin_ns = request->posted_ns ? request->posted_ns : request->now;
	span->end_ns = request->now;
	span->bytes = request->bytes;
	span->message = request->message;
	span->tgid = thread.tgid;
	span->tid = thread.tid;
	span->opcode = request->opcode;
	span->status = request->status;
	span->received = request->received;
	span->matched = !!request->posted_ns;
	bpf_ringbuf_submit(span, wake_seldom(&verbs_spans, request->now, &verbs_spans_woken_ns));
	return 0;
}

/* The data path calls it for every completion that it takes; few become spans. */
static __always_inline void send_verbs_span(__u64 qp, __u64 posted_ns, __u64 now, __u32 opcode, __u64 bytes,
					    __u32 status, __u64 message, bool received)
{
	struct completed request = {
	    .qp = qp,
	    .posted_ns = posted_ns,
	    .now = now,
	    .bytes = bytes,
	    .message = message,
	    .opcode = opcode,
	    .status = status,
	    .received = received,
	};

	if (status != STATUS_FLUSHED && (status || (posted_ns && now - posted_ns >= request_span_ns)))
		send_completed(&request);
}
