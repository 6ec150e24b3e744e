/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is posted: every request of every call of post_send and post_recv, and how long post_send takes. A request has
 * its place in the order of its queue pair from the call on, as it may complete before that returns; it counts when
 * the call has returned and did not refuse it, or at once where returns are not probed. */
#pragma once
#include "verbs.h"

#define LONG_SILENCE_NS 100000000

__u64 requests_unread, bytes_unread, failures_unread;

static __always_inline void count_hit(__u32 hit)
{
	__u64 *seen = bpf_map_lookup_elem(&hits, &hit);

	if (seen)
		add(seen, 1);
}

static __always_inline void add_context(__u32 tgid, __u64 context)
{
	struct context_key key = {.tgid = tgid, .context = context};
	struct verbs_device device;

	if (bpf_map_lookup_elem(&contexts, &key))
		return;
	read_verbs_device(&device, context);
	if (bpf_map_update_elem(&contexts, &key, &device, BPF_ANY))
		add(&contexts_lost, 1);
}

static __always_inline void count_time(__u32 tgid, __u64 context, enum timed what, __u32 opcode, __u64 ns)
{
	static const struct time none;
	struct time_key key = {.tgid = tgid, .context = context, .what = what, .opcode = opcode};
	struct time *time = lookup_or_init(times, &key, &none);
	__u32 slot = log2_slot(ns, TIME_FIRST, TIME_SLOTS);

	if (!time || slot >= TIME_SLOTS)
		return;
	add(&time->sum_ns, ns);
	add(&time->slots[slot], 1);
}

/* The bytes of a request's segments; what cannot be read is counted, but not again. Not inlined: verified once. */
__noinline __u64 segment_bytes(__u64 list, __u32 count, __u32 again)
{
	struct user_sge segment;
	__u64 bytes = 0;

	for (__u32 i = 0; i < MOST_SEGMENTS; i++) {
		if (i >= count)
			return bytes;
		if (bpf_probe_read_user(&segment, sizeof(segment), (void *)(list + i * sizeof(segment)))) {
			add(&bytes_unread, !again);
			return bytes;
		}
		bytes += segment.length;
	}
	if (count > MOST_SEGMENTS)
		add(&bytes_unread, !again);
	return bytes;
}

/* Whether the peer's receive queue has a completion for it. */
static __always_inline bool is_message(__u32 opcode)
{
	return opcode == OPCODE_SEND || opcode == OPCODE_SEND_WITH_IMM || opcode == OPCODE_SEND_WITH_INV ||
	       opcode == OPCODE_WRITE_WITH_IMM;
}

/* The place of a new request that will complete. */
static __always_inline __u64 append(struct walk *walk, struct queue *queue, __u64 wr_id)
{
	__u64 at = __sync_fetch_and_add(&queue->tail, 1);
	struct request *request = &queue->requests[at % QUEUE];

	request->wr_id = wr_id;
	request->posted_ns = walk->now;
	walk->signaled++;
	return at;
}

static __always_inline void push(struct walk *walk, struct queue *queue, const struct user_send_wr *wr,
				 __u64 bytes)
{
	struct request *request;
	__u64 at, message = queue->messages;

	if (is_message(wr->opcode))
		__sync_fetch_and_add(&queue->messages, 1);
	if (!walk->all_signaled && !(wr->send_flags & SEND_SIGNALED)) {
		queue->unsignaled++;
		return;
	}
	at = append(walk, queue, wr->wr_id);
	if (at && walk->now - queue->posted_ns > LONG_SILENCE_NS)
		queue->quiet = at;
	request = &queue->requests[at % QUEUE];
	request->bytes = bytes > 0xffffffff ? 0xffffffff : bytes;
	request->opcode = wr->opcode;
	request->message = message;
	request->lone = walk->acknowledged && (wr->opcode == OPCODE_WRITE || is_message(wr->opcode)) &&
			queue->synced && queue->head == at && !queue->unsignaled && !wr->next && walk->mtu &&
			bytes <= walk->mtu;
	queue->unsignaled = 0;
	queue->posted_ns = walk->now;
}

/* Reads the request of a chain that is next, and goes on to the one behind it. */
static __always_inline bool read_request(struct walk *walk, struct user_send_wr *wr, __u64 *unread)
{
	if (bpf_probe_read_user(wr, sizeof(*wr), (void *)walk->next)) {
		add(unread, 1);
		walk->next = 0;
		walk->unread = 1;
		return false;
	}
	walk->next = wr->next;
	if (wr->opcode > OTHER_OPCODE)
		wr->opcode = OTHER_OPCODE;
	return true;
}

static __always_inline struct part measure(const struct user_send_wr *wr, __u32 mtu, bool again)
{
	struct part part = {.opcode = wr->opcode, .requests = 1, .packets = 1};

	if (wr->opcode == OPCODE_LOCAL_INV || wr->opcode == OPCODE_BIND_MW)
		part.packets = 0;
	else
		part.bytes = segment_bytes(wr->sg_list, wr->num_sge, again);
	if (mtu && wr->opcode != OPCODE_READ && part.bytes)
		part.packets = (part.bytes + mtu - 1) / mtu;
	return part;
}

static __always_inline void collect(struct post_flight *call, const struct part *part)
{
	for (int i = 0; i < PARTS; i++) {
		struct part *sum = &call->parts[i];

		if (sum->requests && sum->opcode != part->opcode)
			continue;
		sum->opcode = part->opcode;
		sum->requests++;
		sum->bytes += part->bytes;
		sum->packets += part->packets;
		return;
	}
	call->mixed = 1;
}

/* Takes one request of a chain. Not inlined: verified once. */
__noinline int take_request(struct walk *walk, struct post_flight *call)
{
	struct user_send_wr wr;
	struct queue *queue;
	struct qp_key key;
	struct part part;

	if (!walk || !call || !read_request(walk, &wr, &requests_unread))
		return 0;
	part = measure(&wr, call->mtu, false);
	walk->opcodes |= 1ull << wr.opcode;
	call->taken++;
	collect(call, &part);
	key = walk->life.qp; /* on the stack: before Linux 6.2 a key may not be elsewhere */
	queue = bpf_map_lookup_elem(&queues, &key);
	if (queue)
		push(walk, queue, &wr, part.bytes);
	return 0;
}

/* The same for a receive. */
__noinline int take_receive(struct walk *walk, struct post_flight *call)
{
	struct user_recv_wr wr;
	struct queue *queue;
	struct qp_key key;

	if (!walk || !call)
		return 0;
	if (bpf_probe_read_user(&wr, sizeof(wr), (void *)walk->next)) {
		add(&requests_unread, 1);
		walk->next = 0;
		walk->unread = 1;
		return 0;
	}
	walk->next = wr.next;
	call->taken++;
	key = walk->life.qp;
	queue = bpf_map_lookup_elem(&receives, &key);
	if (queue)
		append(walk, queue, wr.wr_id);
	return 0;
}

static __always_inline void walk_chain(struct walk *walk, struct post_flight *call, bool receiving)
{
	for (int i = 0; i < (receiving ? MOST_RECEIVES : MOST_REQUESTS) && walk->next; i++) {
		if (receiving)
			take_receive(walk, call);
		else
			take_request(walk, call);
	}
	if (!walk->next)
		return;
	add(&requests_unread, 1);
	walk->unread = 1;
}

/* Not inlined: verified once. */
__noinline int count_part(struct post_flight *call, struct part *part)
{
	static const struct posted none;
	struct posted_key key = {};
	struct posted *counts;

	if (!call || !part)
		return 0;
	key.life = call->life;
	key.opcode = part->opcode;
	counts = lookup_or_init(posted, &key, &none);
	if (!counts)
		return 0;
	add(&counts->requests, part->requests);
	add(&counts->bytes, part->bytes);
	if (call->mtu)
		add(&counts->packets, part->packets);
	else
		add(&counts->unsized, part->requests);
	return 0;
}

static __always_inline void count_parts(struct post_flight *call)
{
	for (int i = 0; i < PARTS; i++)
		if (call->parts[i].requests)
			count_part(call, &call->parts[i]);
}

/* A request of a call that has returned: counts, or was refused. Not inlined: verified once. */
__noinline int settle_request(struct walk *walk, struct post_flight *call, bool refused)
{
	struct user_send_wr wr;
	struct part part;

	if (!walk || !call || !read_request(walk, &wr, &failures_unread))
		return 0;
	part = measure(&wr, call->mtu, true);
	if (refused) {
		walk->signaled += call->all_signaled || wr.send_flags & SEND_SIGNALED;
		walk->messages += is_message(wr.opcode);
		part.requests = 0;
		part.bytes = part.packets = 0;
	}
	count_part(call, &part);
	return 0;
}

/* Counts those of a call's requests that were posted, the first ones, by going through the chain again. */
static __always_inline void settle_chain(struct walk *walk, struct post_flight *call, __u32 accepted)
{
	walk->next = call->first;
	for (__u32 i = 0; i < MOST_REQUESTS && i < call->taken && walk->next; i++)
		settle_request(walk, call, i >= accepted);
}

/* Counts all requests of a call. Not inlined: verified once. */
__noinline int settle(struct walk *walk, struct post_flight *call)
{
	if (!walk || !call)
		return 0;
	if (call->mixed)
		settle_chain(walk, call, call->taken);
	else
		count_parts(call);
	return 0;
}

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

/* The requests of this QP, of `queues` or `receives`; NULL if there is no room. */
static __always_inline struct queue *follow(void *map, __u64 *lost, __u64 *full_tick, struct walk *walk,
					    __u64 address, bool receiving)
{
	static const struct queue none;
	struct qp_key key = walk->life.qp;
	struct queue *queue = bpf_map_lookup_elem(map, &key);

	if (queue && queue->created_ns != walk->life.created_ns) {
		bpf_map_delete_elem(map, &key); /* of another QP: its end was not seen */
		queue = NULL;
	}
	if (!queue) {
		queue = lookup_or_init_(map, &key, &none, lost, full_tick);
		if (!queue) {
			note_missed(address, receiving);
			return NULL;
		}
		learn_qp(address); /* it may be older than the exporter */
		queue->created_ns = walk->life.created_ns;
		queue->window = bpf_ktime_get_ns();
		queue->synced = walk->life.created_ns && !walk->missed; /* these are its first requests */
		if (!queue->synced)
			queue->messages = UNCOUNTED;
	}
	if (queue->address && queue->address != address)
		queue->synced = 0; /* another QP with the number of one that was destroyed */
	queue->address = address;
	queue->capacity = walk->capacity;
	if (__sync_fetch_and_add(&queue->posting, 1))
		queue->messages = UNCOUNTED; /* which of two calls at once is first is not known */
	return queue;
}

/* A call of this thread of which no return was seen: it made the next one, or it never returned. */
static __always_inline void end_unseen(const struct control_thread *thread)
{
	struct post_flight *call = bpf_map_lookup_elem(&post_flights, thread);

	if (!call || call->kind != post_sends)
		return;
	count_parts(call);
	if (call->mixed)
		add(&requests_unread, 1); /* they may be gone */
}

/* Whether the return of a call is seen, which then counts what it posts. */
static __always_inline bool returns(struct pt_regs *ctx, struct post_flight *call)
{
	struct control_thread thread = control_this_thread();
	bool seen = returning_of(bpf_get_attach_cookie(ctx) >> 8);
	long error;

	error = seen ? bpf_map_update_elem(&post_flights, &thread, call, BPF_NOEXIST) : -EEXIST;
	if (!error)
		return true;
	if (error == -EEXIST) {
		end_unseen(&thread);
		if (!seen) {
			bpf_map_delete_elem(&post_flights, &thread);
			return false;
		}
		if (!bpf_map_update_elem(&post_flights, &thread, call, BPF_ANY))
			return true;
	}
	add(&post_flights_lost, 1);
	return false;
}

static __always_inline void enter_post(struct pt_regs *ctx, bool receiving)
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
		queue = follow(&receives, &receives_lost, &receives_full_tick, &walk, call.qp, true);
	} else {
		add_context(walk.life.qp.tgid, walk.life.qp.context);
		queue = follow(&queues, &queues_lost, &queues_full_tick, &walk, call.qp, false);
	}
	call.before = queue ? queue->tail : 0;
	walk_chain(&walk, &call, receiving);
	if (queue && walk.unread) {
		queue->synced = 0;
		queue->messages = UNCOUNTED;
	}
	row = receiving ? NULL : lookup_or_init(calls, &call.life, &none);
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

struct refusal {
	__u64 next, bad;
	__u32 accepted;
	__u32 found;
};

/* Compares one request of a chain. Not inlined: verified once. */
__noinline int look_for_bad(struct refusal *refusal)
{
	struct user_recv_wr wr; /* as a request that sends begins */

	if (!refusal)
		return 0;
	if (refusal->next == refusal->bad) {
		refusal->found = 1;
		return 0;
	}
	refusal->accepted++;
	refusal->next = bpf_probe_read_user(&wr, sizeof(wr), (void *)refusal->next) ? 0 : wr.next;
	return 0;
}

/* Which requests of a failed call are before *bad_wr: these were posted. */
static __always_inline struct refusal find_refusal(const struct post_flight *call, bool receiving)
{
	struct refusal refusal = {.next = call->first};

	if (bpf_probe_read_user(&refusal.bad, sizeof(refusal.bad), (void *)call->bad_wr) || !refusal.bad) {
		refusal.bad = 0;
		return refusal;
	}
	for (__u32 i = 0; i <= (receiving ? MOST_RECEIVES : MOST_REQUESTS) && i <= call->taken; i++) {
		if (refusal.found || !refusal.next)
			break;
		look_for_bad(&refusal);
	}
	return refusal;
}

/* A call that failed posted what is before *bad_wr. */
static __always_inline void take_back(struct walk *walk, struct post_flight *call, struct queue *queue,
				      bool receiving)
{
	struct refusal refusal = find_refusal(call, receiving);

	if (!refusal.found && refusal.bad && call->cut)
		refusal.accepted = call->taken; /* it is behind those */
	else if (!refusal.found) {
		add(&failures_unread, 1);
		walk->unread = 1;
		refusal.accepted = 0;
	}
	if (!receiving)
		settle_chain(walk, call, refusal.accepted);
	else if (refusal.accepted < call->taken)
		walk->signaled = call->taken - refusal.accepted;
	if (!queue)
		return;
	queue->messages -= walk->messages;
	if (walk->unread)
		queue->messages = UNCOUNTED;
	if (!walk->unread && queue->tail == call->after && walk->signaled <= call->after - call->before) {
		queue->tail -= walk->signaled;
		return;
	}
	queue->synced = 0;
	if (receiving)
		queue->messages = UNCOUNTED;
}

static __always_inline void return_post(struct pt_regs *ctx, bool receiving)
{
	struct control_thread thread = control_this_thread();
	struct post_flight *call = bpf_map_lookup_elem(&post_flights, &thread);
	struct walk walk = {};
	struct queue *queue;
	struct qp_key key;

	if (!call || call->kind != (receiving ? post_receives : post_sends) ||
	    call->sp + CONTROL_RETURN_POPS != PT_REGS_SP(ctx))
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
	bpf_map_delete_elem(&post_flights, &thread);
}

SEC("uprobe")
int post_send_enter(struct pt_regs *ctx)
{
	count_hit(hit_post_send);
	enter_post(ctx, false);
	return 0;
}

SEC("uretprobe")
int post_send_return(struct pt_regs *ctx)
{
	return_post(ctx, false);
	return 0;
}

SEC("uprobe")
int post_recv_enter(struct pt_regs *ctx)
{
	count_hit(hit_post_recv);
	enter_post(ctx, true);
	return 0;
}

SEC("uretprobe")
int post_recv_return(struct pt_regs *ctx)
{
	return_post(ctx, true);
	return 0;
}
