/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is polled between ibv_start_poll and ibv_end_poll: status and wr_id are in the completion queue, the rest of a
 * completion is known as far as its program reads it, by calls through the queue's pointers too. */
#pragma once
#include "completions.h"
#include "extended.bpf.h"

/* The completion that a queue of completions stands at. */
struct extended_poll {
	__u64 seen_ns, wr_id, window;
	__u32 status, opcode, number, bytes;
	__u8 open, has_opcode, has_number;
	__u8 zero[5];
};
MAP(extended_polls, HASH, struct control_key, struct extended_poll, 2048);

/* Its program reads no more of it. */
static __always_inline void finish_completion(__u64 cq)
{
	struct control_key key = control_key(cq);
	struct extended_poll *poll = bpf_map_lookup_elem(&extended_polls, &key);
	struct seen seen = {.cq = cq, .from.tgid = key.tgid};
	struct user_wc wc = {};

	if (!poll || !poll->open)
		return;
	poll->open = 0;
	if (bpf_probe_read_user(&seen.from.context, sizeof(seen.from.context), (void *)cq)) {
		add(&completions_unread, 1);
		return;
	}
	seen.now = poll->seen_ns;
	seen.window = poll->window;
	add_context(key.tgid, seen.from.context);
	count_completion(&seen, poll->status);
	wc.wr_id = poll->wr_id;
	wc.status = poll->status;
	wc.opcode = poll->opcode;
	wc.qp_num = poll->number;
	wc.byte_len = poll->bytes;
	if (poll->has_number && (poll->status || poll->has_opcode))
		match_completion(&seen, &wc);
	else if (!poll->status && !(poll->has_opcode && poll->opcode & COMPLETED_RECEIVE))
		add(&completions_unmatched, 1);
}

static __always_inline bool moves_on(__u32 call)
{
	return call == call_start_poll || call == call_next_poll;
}

UPROBE(extended_poll_enter)
{
	struct thread thread = this_thread();
	struct poll_flight flight = {.sp = PT_REGS_SP(ctx), .cq = PT_REGS_PARM1(ctx)};
	struct control_key key;
	__u32 call = call_of(ctx);

	count_hit(hit_extended_poll + call);
	flight.start_ns = bpf_ktime_get_ns();
	count_poll(thread, bpf_get_attach_cookie(ctx) & 0xffff, flight.start_ns);
	if (!is_call(ctx, CQ_EX_CALLS))
		return 0;
	if (moves_on(call) || call == call_end_poll)
		finish_completion(flight.cq);
	if (call == call_end_poll) {
		key = control_key(flight.cq);
		bpf_map_delete_elem(&extended_polls, &key);
		return 0;
	}
	flight.call = call + 1;
	if (!is_beside(flight.sp))
		put_flight(poll_flights, &thread, &flight);
	return 0;
}

static __always_inline void begin_completion(struct pt_regs *ctx, const struct poll_flight *flight)
{
	static const struct extended_poll none;
	struct control_key key = control_key(flight->cq);
	struct extended_poll *poll = lookup_or_init(extended_polls, &key, &none);
	__u64 context = 0;

	if (!poll)
		return;
	if (bpf_probe_read_user(&poll->status, sizeof(poll->status), (void *)(flight->cq + CQ_EX_STATUS)) ||
	    bpf_probe_read_user(&poll->wr_id, sizeof(poll->wr_id), (void *)(flight->cq + CQ_EX_WR_ID))) {
		add(&completions_unread, 1);
		return;
	}
	poll->seen_ns = bpf_ktime_get_ns();
	poll->window = window_of(bpf_get_attach_cookie(ctx) & 0xffff);
	poll->has_opcode = poll->has_number = 0;
	poll->bytes = BYTES_UNKNOWN;
	poll->open = 1;
	if (flight->call == call_start_poll + 1 &&
	    !bpf_probe_read_user(&context, sizeof(context), (void *)flight->cq))
		count_time(key.tgid, context, timed_poll_cq, 0, poll->seen_ns - flight->start_ns);
}

static __always_inline void learn_completion(const struct poll_flight *flight, __u32 value)
{
	struct control_key key = control_key(flight->cq);
	struct extended_poll *poll = bpf_map_lookup_elem(&extended_polls, &key);

	if (!poll || !poll->open)
		return;
	switch (flight->call - 1) {
	case call_read_qp_num:
		poll->number = value;
		poll->has_number = 1;
		break;
	case call_read_opcode:
		poll->opcode = value;
		poll->has_opcode = 1;
		break;
	case call_read_byte_len:
		poll->bytes = value;
		break;
	}
}

AT_RETURN(extended_poll_return)
{
	struct thread thread = this_thread();
	struct poll_flight *flight = flight_of(poll_flights, &thread);

	if (!flight || flight->call != call_of(ctx) + 1 || !is_return_of(flight->sp, ctx))
		return 0;
	if (!moves_on(flight->call - 1))
		learn_completion(flight, PT_REGS_RC(ctx));
	else if (!(__s32)PT_REGS_RC(ctx))
		begin_completion(ctx, flight);
	end_flight(poll_flights, &thread, flight);
	return 0;
}
