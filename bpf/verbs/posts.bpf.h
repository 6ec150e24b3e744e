/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is posted: every request of every call of post_send and post_recv, and how long post_send takes. A request has
 * its place in the order of its queue pair from the call on, as it may complete before that returns; it counts when
 * the call has returned and did not refuse it, or at once where returns are not probed. */
#pragma once
#include "refusals.h"
#include "requests.h"

static __always_inline bool begin_walk(struct walk *walk, __u64 address, __u64 first, bool receiving)
{
	struct qp_control *control = qp_control(address);
	struct user_qp qp;

	if (bpf_probe_read_user(&qp, sizeof(qp), (void *)address))
		return false;
	walk->life.qp.tgid = bpf_get_current_pid_tgid() >> 32;
	walk->life.qp.number = qp.qp_num;
	walk->life.qp.context = qp.context;
	walk->next = first;
	if (!control || control->number != qp.qp_num)
		return true;
	walk->life.created_ns = control->created_ns;
	walk->all_signaled = control->all_signaled;
	walk->acknowledged = control->type == QP_TYPE_RC || control->type == QP_TYPE_XRC_SEND;
	walk->missed = receiving ? control->receive_missed : control->send_missed;
	walk->capacity = receiving ? control->most_receives : control->most_sends;
	if (control->known & QP_ATTR_PATH_MTU && control->path_mtu >= 1 && control->path_mtu <= 5)
		walk->mtu = 128 << control->path_mtu;
	return true;
}

static __always_inline void note_missed(__u64 address, bool receiving)
{
	struct qp_control *control = qp_control(address);

	if (control && receiving)
		control->receive_missed = 1;
	else if (control)
		control->send_missed = 1;
}

/* The requests of this QP, of `queues` or `receives`; NULL if there is no room. `since` is when the last gap of this library's
 * calls ended; one that has none is NO_LIBRARY. */
static __always_inline struct queue *follow(void *map, __u64 *lost, __u64 *full_tick, struct walk *walk,
					    __u64 address, bool receiving, __u32 library, __u64 since)
{
	static const struct queue none;
	struct qp_key key = walk->life.qp;
	struct queue *queue = bpf_map_lookup_elem(map, &key);

	if (queue && queue->created_ns != walk->life.created_ns) {
		bpf_map_delete_elem(map, &key); /* of another QP: its end was not seen */
		queue = NULL;
	}
	if (!queue) {
		if (!receiving)
			add_context(walk->life.qp.tgid, walk->life.qp.context);
		queue = lookup_or_init_(map, &key, &none, lost, full_tick);
		if (!queue) {
			note_missed(address, receiving);
			return NULL;
		}
		learn_qp(address); /* it may be older than the exporter */
		queue->created_ns = walk->life.created_ns;
		queue->window = bpf_ktime_get_ns();
		queue->library = library;
		queue->since = since;
		queue->synced = walk->life.created_ns && !walk->missed && /* these are its first requests */
				walk->life.created_ns >= since;
		if (!queue->synced)
			queue->messages = UNCOUNTED;
	}
	if (queue->address && queue->address != address)
		queue->synced = 0; /* another QP with the number of one that was destroyed */
	queue->address = address;
	if (library != NO_LIBRARY && (queue->since != since || queue->library != library)) {
		if (queue->library != NO_LIBRARY || since)
			begin_again(queue, since);
		queue->library = library;
	}
	queue->capacity = walk->capacity;
	if (__sync_fetch_and_add(&queue->posting, 1))
		queue->messages = UNCOUNTED; /* which of two calls at once is first is not known */
	return queue;
}

/* A call of this thread of which no return was seen: it made the next one, or it never returned. */
static __always_inline void end_unseen(struct post_flight *call)
{
	if (call->kind != post_sends)
		return;
	count_parts(call);
	if (call->mixed)
		add(&requests_unread, 1); /* they may be overwritten by now */
}

/* Whether the return of a call is seen, which then counts what it posts. */
static __always_inline bool returns(struct pt_regs *ctx, struct post_flight *call)
{
	struct thread thread = this_thread();
	__u64 cookie = bpf_get_attach_cookie(ctx);
	bool seen = cookie & OWN_RETURN || returning_of(cookie >> 8);
	struct post_flight *before = flight_of(post_flights, &thread);

	if (seen && is_beside(call->sp))
		return false;
	if (before)
		end_unseen(before);
	if (seen)
		return put_flight(post_flights, &thread, call);
	if (before)
		end_flight(post_flights, &thread, before);
	return false;
}

static __always_inline void post(struct pt_regs *ctx, bool receiving, __u32 library, __u64 since)
{
	static const struct calls none;
	struct post_flight call = {
	    .sp = PT_REGS_SP(ctx),
	    .qp = PT_REGS_PARM1(ctx),
	    .first = PT_REGS_PARM2(ctx),
	    .bad_wr = PT_REGS_PARM3(ctx),
	    .kind = receiving ? post_receives : post_sends,
	};
	struct walk walk = {.now = bpf_ktime_get_ns()};
	struct queue *queue;
	struct calls *row;

	if (!begin_walk(&walk, call.qp, call.first, receiving)) {
		add(&requests_unread, 1);
		return;
	}
	call.life = walk.life;
	call.mtu = walk.mtu;
	call.all_signaled = walk.all_signaled;
	if (receiving) {
		queue = follow(&receives, &receives_lost, &receives_full_tick, &walk, call.qp, true, library,
			       since);
	} else {
		queue =
		    follow(&queues, &queues_lost, &queues_full_tick, &walk, call.qp, false, library, since);
	}
	call.before = queue ? queue->tail : 0;
	walk_chain(&walk, &call, receiving);
	count_process(walk.life.qp.tgid, receiving ? hit_post_recv : hit_post_send, 1, call.taken);
	if (queue && walk.unread) {
		queue->synced = 0;
		queue->messages = UNCOUNTED;
	}
	row = receiving ? NULL : shared_row(calls, call.life.qp.tgid, &call.life, &none);
	if (row) {
		add(&row->count, 1);
		if (walk.opcodes & ~row->opcodes)
			__sync_fetch_and_or(&row->opcodes, walk.opcodes);
	}
	call.after = call.before + walk.signaled;
	call.start_ns = walk.now;
	call.cut = walk.unread;
	if (!returns(ctx, &call) && !receiving)
		settle(&walk, &call);
}

/* `of_one`: in a link for one process, which counts the calls of linked processes; that for all counts those of others. */
static __always_inline int enter_post(struct pt_regs *ctx, bool receiving, bool of_one)
{
	__u32 library = bpf_get_attach_cookie(ctx) >> 8 & 0xff;
	const __u64 *linked = linked_since(bpf_get_current_pid_tgid() >> 32);

	if (of_one != !!linked)
		return 0;
	count_hit(receiving ? hit_post_recv : hit_post_send);
	post(ctx, receiving, library, linked ? *linked : all_since(library));
	return 0;
}

static __always_inline void return_post(struct pt_regs *ctx, bool receiving)
{
	struct thread thread = this_thread();
	struct post_flight *call = flight_of(post_flights, &thread);
	struct walk walk = {};
	struct queue *queue;
	struct qp_key key;

	if (!call || call->kind != (receiving ? post_receives : post_sends) || !is_return_of(call->sp, ctx))
		return;
	key = call->life.qp;
	queue = receiving ? bpf_map_lookup_elem(&receives, &key) : bpf_map_lookup_elem(&queues, &key);
	if (!receiving)
		count_time(key.tgid, key.context, timed_post_send, 0, bpf_ktime_get_ns() - call->start_ns);
	if ((__s32)PT_REGS_RC(ctx))
		take_back(&walk, call, queue, receiving);
	else if (!receiving)
		settle(&walk, call);
	if (queue && queue->posting)
		__sync_fetch_and_add(&queue->posting, -1);
	end_flight(post_flights, &thread, call);
}

UPROBE(post_send_enter)
{
	return enter_post(ctx, false, false);
}

/* In links for one process. */
UPROBE(post_send_enter_of_one)
{
	return enter_post(ctx, false, true);
}

AT_RETURN(post_send_return)
{
	return_post(ctx, false);
	return 0;
}

UPROBE(post_recv_enter)
{
	return enter_post(ctx, true, false);
}

/* In links for one process. */
UPROBE(post_recv_enter_of_one)
{
	return enter_post(ctx, true, true);
}

AT_RETURN(post_recv_return)
{
	return_post(ctx, true);
	return 0;
}
