/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is posted between ibv_wr_start and ibv_wr_complete. These are inline calls through pointers that a provider puts
 * into each queue pair: exporter/verbs/functions.py has their names, and exporter/verbs/code/extended.py finds the
 * functions that the objects of processes point to. A process may have written anything there, so a call counts only
 * if its own object has the function in the pointer of this call. */
#pragma once
#include "extended.h"

UPROBE(extended_start)
{
	static const struct extended_post none;
	static const __u32 first;
	struct control_key key = control_key(PT_REGS_PARM1(ctx));
	struct walk walk = {};
	struct extended_post *post;
	__u64 *since = bpf_map_lookup_elem(&extended_since, &first);

	count_hit(hit_extended + call_start);
	if (!is_call(ctx, QP_EX_CALLS))
		return 0;
	post = shared_row(extended_posts, key.tgid, &key, &none);
	if (!post)
		return 0;
	if (settles(post))
		count_built(post, 1); /* its return was not seen */
	if (post->open)
		end_posting(queue_of(post)); /* it was not ended, or that was not seen */
	post->open = 0;
	if (!begin_walk(&walk, key.address, 0, false)) {
		add(&requests_unread, 1);
		return 0;
	}
	walk.missed |= !since || walk.life.created_ns < *since;
	follow(&queues, &queues_lost, &queues_full_tick, &walk, key.address, false, NO_LIBRARY, 0);
	post->walk = walk;
	post->requests = post->unsignaled = post->building = 0;
	post->open = 1;
	return 0;
}

UPROBE(extended_build)
{
	static const struct posted none;
	struct {
		__u64 wr_id;
		__u32 flags, zero;
	} request = {};
	struct extended_post *post = open_post(ctx);
	__u32 call = call_of(ctx);
	struct queue *queue;

	if (!post || call >= qp_calls)
		return 0;
	queue = queue_of(post);
	finish_request(post, queue);
	if (bpf_probe_read_user(&request, sizeof(request), (void *)(PT_REGS_PARM1(ctx) + QP_EX_WR_ID))) {
		add(&requests_unread, 1);
		post->walk.unread = 1;
		return 0;
	}
	post->opcode = opcodes_built[call] & 15;
	post->bytes = call == call_atomic_write ? ATOMIC_WRITE_BYTES : 0;
	post->building = 1;
	post->signaled = post->walk.all_signaled || request.flags & SEND_SIGNALED;
	post->requests++;
	if (!(post->walk.opcodes >> post->opcode & 1))
		post->counts[post->opcode] = none;
	post->walk.opcodes |= 1ull << post->opcode;
	if (queue && post->signaled)
		stage(post, queue, request.wr_id);
	post->walk.messages += is_message(post->opcode);
	post->walk.signaled += post->signaled;
	post->unsignaled = post->signaled ? 0 : post->unsignaled + 1;
	return 0;
}

UPROBE(extended_set)
{
	struct extended_post *post = open_post(ctx);

	if (!post || !post->building)
		return 0;
	switch (call_of(ctx)) {
	case call_set_sge:
		post->bytes += (__u32)PT_REGS_PARM4(ctx);
		break;
	case call_set_sge_list:
		post->bytes += segment_bytes(
		    PT_REGS_PARM3(ctx),
		    PT_REGS_PARM2(ctx) > MOST_SEGMENTS ? MOST_SEGMENTS + 1 : PT_REGS_PARM2(ctx), 0);
		break;
	case call_set_inline_data:
		post->bytes += PT_REGS_PARM3(ctx);
		break;
	case call_set_inline_data_list:
		post->bytes += buffer_bytes(PT_REGS_PARM3(ctx), PT_REGS_PARM2(ctx));
		break;
	}
	return 0;
}

UPROBE(extended_complete)
{
	static const struct calls none;
	struct post_flight call = {.sp = PT_REGS_SP(ctx), .qp = PT_REGS_PARM1(ctx), .kind = post_extended};
	struct extended_post *post = open_post(ctx);
	struct queue *queue;
	struct calls *row;

	if (!post)
		return 0;
	queue = queue_of(post);
	finish_request(post, queue);
	count_process(post->walk.life.qp.tgid, hit_extended + call_complete, 1, post->requests);
	call.life = post->walk.life;
	row = shared_row(calls, call.life.qp.tgid, &call.life, &none);
	if (row) {
		add(&row->count, 1);
		if (post->walk.opcodes & ~row->opcodes)
			__sync_fetch_and_or(&row->opcodes, post->walk.opcodes);
	}
	if (queue)
		append_staged(post, queue, bpf_ktime_get_ns());
	end_posting(queue);
	post->open = 0;
	post->unsettled = 1;
	if (!returns(ctx, &call) && settles(post))
		count_built(post, 1);
	return 0;
}

AT_RETURN(extended_complete_return)
{
	struct thread thread = this_thread();
	struct post_flight *call = flight_of(post_flights, &thread);
	struct extended_post *post;
	struct control_key key = {.tgid = thread.tgid};

	if (!call || call->kind != post_extended || !is_return_of(call->sp, ctx))
		return 0;
	key.address = call->qp;
	post = bpf_map_lookup_elem(&extended_posts, &key);
	if (post && settles(post)) {
		count_built(post, !(__s32)PT_REGS_RC(ctx));
		if ((__s32)PT_REGS_RC(ctx))
			take_all_back(post);
	}
	end_flight(post_flights, &thread, call);
	return 0;
}

UPROBE(extended_abort)
{
	struct extended_post *post = open_post(ctx);

	if (!post)
		return 0;
	end_posting(queue_of(post));
	post->open = 0;
	return 0;
}
