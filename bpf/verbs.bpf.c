/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* RDMA verbs: what is posted, what completes, and how long both take.
 *
 * Completions of a QP's send queue come in the order of its requests. Where poll_cq is observed at times only, which
 * request is the next to complete is found anew: a completion's wr_id has to be that of a single request that may be
 * outstanding. From then on order tells, and wr_id only contradicts. */
#include "verbs.h"

#define LONG_SILENCE_NS 100000000

__u64 requests_unread, bytes_unread, completions_unread, completions_unmatched, failures_unread;

struct walk {
	struct qp_key key;
	__u64 next, now, address, created_ns;
	__u32 mtu;
	__u8 all_signaled;
	__u8 takes_back; /* the requests were refused: they were counted and were not posted */
	__u8 unread;	 /* some of the chain: who counts messages knows no number any more */
	__u8 zero;
	__u32 signaled;
	__u32 messages; /* of those taken back */
};

static __always_inline __u64 current_window(void)
{
	__u32 zero = 0;
	__u64 *window = bpf_map_lookup_elem(&windows, &zero);

	return window ? *window : 0;
}

static __always_inline void count_hit(__u32 hit)
{
	__u64 *seen = bpf_map_lookup_elem(&hits, &hit);

	if (seen)
		add(seen, 1);
}

static __always_inline void know_context(__u32 tgid, __u64 context)
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

/* The whole number of a request that is outstanding: there are never as many as its low bits can tell apart. */
static __always_inline __u64 message_number(const struct queue *queue, const struct request *request)
{
	__u64 newest = queue->messages - 1;

	if (!queue->created_ns || !is_message(request->opcode) || !queue->messages ||
	    queue->messages >= UNCOUNTED / 2)
		return NOT_NUMBERED;
	return newest - ((newest - request->message) & 0xffff);
}

static __always_inline void push(struct walk *walk, struct queue *queue, const struct user_send_wr *wr,
				 __u64 bytes)
{
	struct request *request;
	__u64 window = current_window();
	__u64 at, message = queue->messages;

	if (is_message(wr->opcode))
		__sync_fetch_and_add(&queue->messages, 1);
	if (!walk->all_signaled && !(wr->send_flags & SEND_SIGNALED)) {
		queue->unsignaled++;
		return;
	}
	at = __sync_fetch_and_add(&queue->tail, 1);
	if (at && walk->now - queue->posted_ns > LONG_SILENCE_NS)
		queue->quiet = at;
	request = &queue->requests[at % QUEUE];
	request->wr_id = wr->wr_id;
	request->posted_ns = walk->now;
	request->bytes = bytes > 0xffffffff ? 0xffffffff : bytes;
	request->opcode = wr->opcode;
	request->message = message;
	request->lone = queue->synced && queue->window == window && queue->head == at && !queue->unsignaled &&
			walk->mtu && bytes <= walk->mtu;
	queue->unsignaled = 0;
	queue->posted_ns = walk->now;
	walk->signaled++;
}

/* Counts one request of a chain and goes to the next. Not inlined: verified once. */
__noinline int take_request(struct walk *walk)
{
	static const struct posted none;
	struct posted_key key = {};
	struct posted *counts;
	struct queue *queue;
	struct user_send_wr wr;
	__u64 bytes = 0, packets = 1;
	__s64 one;

	if (!walk)
		return 0;
	if (bpf_probe_read_user(&wr, sizeof(wr), (void *)walk->next)) {
		add(walk->takes_back ? &failures_unread : &requests_unread, 1);
		walk->next = 0;
		walk->unread = 1;
		return 0;
	}
	walk->next = wr.next;
	if (wr.opcode == OPCODE_LOCAL_INV || wr.opcode == OPCODE_BIND_MW)
		packets = 0;
	else
		bytes = segment_bytes(wr.sg_list, wr.num_sge, walk->takes_back);
	if (walk->mtu && packets && wr.opcode != OPCODE_READ && bytes)
		packets = (bytes + walk->mtu - 1) / walk->mtu;
	one = walk->takes_back ? -1 : 1;
	key.qp = walk->key;
	key.opcode = wr.opcode;
	counts = lookup_or_init(posted, &key, &none);
	if (counts) {
		add(&counts->requests, one);
		add(&counts->bytes, bytes * one);
		if (walk->mtu)
			add(&counts->packets, packets * one);
		else
			add(&counts->unsized, one);
	}
	if (walk->takes_back) {
		walk->signaled += walk->all_signaled || wr.send_flags & SEND_SIGNALED;
		walk->messages += is_message(wr.opcode);
		return 0;
	}
	/* On the stack: before Linux 6.2 a key may not be elsewhere. */
	queue = bpf_map_lookup_elem(&queues, &key.qp);
	if (queue)
		push(walk, queue, &wr, bytes);
	return 0;
}

static __always_inline void walk_chain(struct walk *walk)
{
	for (int i = 0; i < MOST_REQUESTS && walk->next; i++)
		take_request(walk);
	if (walk->next)
		add(walk->takes_back ? &failures_unread : &requests_unread, 1);
}

static __always_inline bool begin_walk(struct walk *walk, __u64 address, __u64 first)
{
	struct qp_control *control = qp_control(address);
	struct user_qp qp;

	if (bpf_probe_read_user(&qp, sizeof(qp), (void *)address))
		return false;
	walk->key.tgid = bpf_get_current_pid_tgid() >> 32;
	walk->key.number = qp.qp_num;
	walk->key.context = qp.context;
	walk->address = address;
	walk->next = first;
	if (control && control->number == qp.qp_num) {
		walk->all_signaled = control->all_signaled;
		walk->created_ns = control->created_ns;
		if (control->known & QP_ATTR_PATH_MTU && control->path_mtu >= 1 && control->path_mtu <= 5)
			walk->mtu = 128 << control->path_mtu;
	}
	return true;
}

SEC("uprobe")
int post_send_enter(struct pt_regs *ctx)
{
	static const struct queue none;
	struct control_thread thread = control_this_thread();
	struct post_flight call = {.sp = PT_REGS_SP(ctx), .qp = PT_REGS_PARM1(ctx)};
	struct walk walk = {.now = bpf_ktime_get_ns()};
	struct qp_control *control;
	struct queue *queue;

	count_hit(hit_post_send);
	if (!begin_walk(&walk, call.qp, PT_REGS_PARM2(ctx))) {
		add(&requests_unread, 1);
		return 0;
	}
	know_context(walk.key.tgid, walk.key.context);
	queue = bpf_map_lookup_elem(&queues, &walk.key);
	if (!queue) {
		queue = lookup_or_init(queues, &walk.key, &none);
		if (queue && walk.created_ns) {
			queue->synced = 1; /* this is its first request */
			queue->window = current_window();
		}
	}
	control = queue ? NULL : qp_control(call.qp);
	if (control)
		control->created_ns = 0; /* no room: not followed from its creation on */
	if (queue) {
		if (queue->address && queue->address != call.qp)
			queue->synced = 0; /* another QP with the number of one that was destroyed */
		if (queue->created_ns != walk.created_ns) {
			queue->created_ns = walk.created_ns;
			queue->messages = 0;
		}
		queue->address = call.qp;
		add(&queue->calls, 1);
		call.before = queue->tail;
	}
	walk_chain(&walk);
	if (queue && (walk.next || walk.unread)) {
		queue->synced = 0;
		queue->messages = UNCOUNTED;
	}
	call.after = call.before + walk.signaled;
	call.start_ns = walk.now;
	call.bad_wr = PT_REGS_PARM3(ctx);
	call.key = walk.key;
	if (bpf_map_update_elem(&post_flights, &thread, &call, BPF_ANY))
		add(&post_flights_lost, 1);
	return 0;
}

/* A call that failed posted what is before *bad_wr. */
static __always_inline void take_back(const struct post_flight *call)
{
	struct walk walk = {.takes_back = 1};
	struct queue *queue = bpf_map_lookup_elem(&queues, &call->key);
	__u64 bad = 0;

	if (bpf_probe_read_user(&bad, sizeof(bad), (void *)call->bad_wr) || !bad ||
	    !begin_walk(&walk, call->qp, bad)) {
		add(&failures_unread, 1);
		if (queue) {
			queue->synced = 0;
			queue->messages = UNCOUNTED;
		}
		return;
	}
	walk_chain(&walk);
	if (!queue)
		return;
	if (walk.next || walk.unread)
		queue->messages = UNCOUNTED;
	queue->messages -= walk.messages;
	if (walk.next || queue->tail != call->after || walk.signaled > call->after - call->before)
		queue->synced = 0;
	else
		queue->tail -= walk.signaled;
}

SEC("uretprobe")
int post_send_return(struct pt_regs *ctx)
{
	struct control_thread thread = control_this_thread();
	struct post_flight *call = bpf_map_lookup_elem(&post_flights, &thread);

	if (!call || call->sp + CONTROL_RETURN_POPS != PT_REGS_SP(ctx))
		return 0;
	count_time(call->key.tgid, call->key.context, timed_post_send, 0,
		   bpf_ktime_get_ns() - call->start_ns);
	if ((__s32)PT_REGS_RC(ctx))
		take_back(call);
	bpf_map_delete_elem(&post_flights, &thread);
	return 0;
}

SEC("uprobe")
int poll_cq_enter(struct pt_regs *ctx)
{
	struct control_thread thread = control_this_thread();
	struct poll_flight call = {.sp = PT_REGS_SP(ctx), .cq = PT_REGS_PARM1(ctx), .wc = PT_REGS_PARM3(ctx)};

	count_hit(hit_poll_cq);
	call.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&poll_flights, &thread, &call, BPF_ANY))
		add(&poll_flights_lost, 1);
	return 0;
}

struct search {
	__u64 wr_id, at, tail, found;
	__u32 matches;
	__u32 zero;
};

/* Not inlined: verified once. */
__noinline int compare(struct search *search, struct queue *queue)
{
	__u64 at;

	if (!search || !queue)
		return 0;
	at = search->at++;
	if (queue->requests[at % QUEUE].wr_id == search->wr_id) {
		search->found = at;
		search->matches++;
	}
	return 0;
}

/* The place of the one request with this wr_id that may be outstanding; ~0 if there is none or are several. */
static __always_inline __u64 find_request(struct queue *queue, __u64 wr_id)
{
	struct search search = {.wr_id = wr_id, .at = queue->quiet, .tail = queue->tail};

	if (search.tail > QUEUE && search.at < search.tail - QUEUE)
		search.at = search.tail - QUEUE;
	for (int i = 0; i < QUEUE; i++) {
		if (search.at >= search.tail || search.matches > 1)
			break;
		compare(&search, queue);
	}
	return search.matches == 1 ? search.found : ~0ull;
}

static __always_inline bool synchronise(struct queue *queue, __u64 window, __u64 wr_id)
{
	__u64 at;

	if (queue->window != window) {
		queue->window = window;
		queue->synced = 0;
	}
	if (queue->synced && queue->head < queue->tail && queue->tail - queue->head <= QUEUE &&
	    queue->requests[queue->head % QUEUE].wr_id == wr_id)
		return true;
	at = find_request(queue, wr_id);
	queue->synced = at != ~0ull;
	if (queue->synced)
		queue->head = at;
	return queue->synced;
}

struct seen {
	__u64 at, now, cq, window;
	struct context_key from;
};

/* One completion. Of a failed one only wr_id, status and QP are valid. Not inlined: verified once. */
__noinline int take_completion(struct seen *seen)
{
	static const __u64 none;
	struct status_key status = {};
	struct qp_key key = {};
	struct request *request;
	struct queue *queue;
	struct user_wc wc;
	__u64 *count, took;

	if (!seen)
		return 0;
	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)seen->at)) {
		add(&completions_unread, 1);
		return 0;
	}
	status.tgid = key.tgid = seen->from.tgid;
	status.context = key.context = seen->from.context;
	status.status = wc.status;
	count = lookup_or_init(completions, &status, &none);
	if (count)
		add(count, 1);
	key.number = wc.qp_num;
	if (!wc.status && wc.opcode & COMPLETED_RECEIVE)
		return 0;
	queue = bpf_map_lookup_elem(&queues, &key);
	if (!queue)
		return 0;
	if (wc.status) { /* it may be a receive's; all that is outstanding fails now */
		queue->synced = 0;
		queue->quiet = queue->tail;
		qp_failed(queue->address);
		send_verbs_span(queue->address, 0, seen->now, 0, 0, wc.status, NOT_NUMBERED, false);
		return 0;
	}
	if (!synchronise(queue, seen->window, wc.wr_id)) {
		add(&completions_unmatched, 1);
		return 0;
	}
	request = &queue->requests[__sync_fetch_and_add(&queue->head, 1) % QUEUE];
	took = seen->now - request->posted_ns;
	if ((__s64)took < 0)
		return 0;
	count_time(key.tgid, key.context, timed_request, request->opcode, took);
	send_verbs_span(queue->address, request->posted_ns, seen->now, request->opcode, request->bytes, 0,
			message_number(queue, request), false);
	if (request->lone)
		count_time(key.tgid, key.context, timed_ack, 0, took);
	return 0;
}

SEC("uretprobe")
int poll_cq_return(struct pt_regs *ctx)
{
	struct control_thread thread = control_this_thread();
	struct poll_flight *call = bpf_map_lookup_elem(&poll_flights, &thread);
	struct seen seen = {.now = bpf_ktime_get_ns()};
	__s32 completed = PT_REGS_RC(ctx);

	if (!call || call->sp + CONTROL_RETURN_POPS != PT_REGS_SP(ctx))
		return 0;
	if (completed > 0 &&
	    !bpf_probe_read_user(&seen.from.context, sizeof(seen.from.context), (void *)call->cq)) {
		seen.from.tgid = thread.tgid;
		seen.at = call->wc;
		seen.cq = call->cq;
		seen.window = current_window();
		know_context(thread.tgid, seen.from.context);
		count_time(thread.tgid, seen.from.context, timed_poll_cq, 0, seen.now - call->start_ns);
		for (int i = 0; i < MOST_COMPLETIONS && i < completed; i++) {
			take_completion(&seen);
			seen.at += sizeof(struct user_wc);
		}
		if (completed > MOST_COMPLETIONS)
			add(&completions_unread, completed - MOST_COMPLETIONS);
	}
	bpf_map_delete_elem(&poll_flights, &thread);
	return 0;
}
