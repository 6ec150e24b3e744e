/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The requests of a call that posts: read one by one, put into their queue pair's order, and counted. */
#pragma once
#include "verbs.h"

#define LONG_SILENCE_NS 100000000

__u64 requests_unread, bytes_unread, failures_unread;

static __always_inline void add_context(__u32 tgid, __u64 context)
{
	struct context_key key = {.tgid = tgid, .context = context};
	struct verbs_device device;

	if (bpf_map_lookup_elem(&contexts, &key))
		return;
	read_verbs_device(&device, context);
	put_shared(contexts, tgid, &key, &device);
}

/* Not inlined: verified once. */
__noinline int count_time(__u32 tgid, __u64 context, enum timed what, __u32 opcode, __u64 ns)
{
	static const struct time none;
	struct time_key key = {.tgid = tgid, .context = context, .what = what, .opcode = opcode};
	struct time *time = shared_row(times, tgid, &key, &none);
	__u32 slot = duration_slot(ns, TIME_FIRST, TIME_SLOTS);

	if (!time || slot >= TIME_SLOTS)
		return 0;
	add(&time->sum_ns, ns);
	add(&time->slots[slot], 1);
	return 0;
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
	counts = shared_row(posted, key.life.qp.tgid, &key, &none);
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

/* The request at this place of a call that has returned: counts, or was refused. The sums of the call's parts are not
 * needed any more: in their place the request is measured, which keeps the stack within the kernel's 512 bytes. Not
 * inlined: verified once. */
__noinline int settle_request(struct walk *walk, struct post_flight *call, __u32 at, __u32 accepted)
{
	struct user_send_wr wr;
	struct part *part;

	if (!walk || !call || !read_request(walk, &wr, &failures_unread))
		return 0;
	part = &call->parts[0];
	*part = measure(&wr, call->mtu, true);
	if (at >= accepted) {
		walk->signaled += call->all_signaled || wr.send_flags & SEND_SIGNALED;
		walk->messages += is_message(wr.opcode);
		part->requests = 0;
		part->bytes = part->packets = 0;
	}
	count_part(call, part);
	return 0;
}

/* Counts those of a call's requests that were posted, the first ones, by going through the chain again. */
static __always_inline void settle_chain(struct walk *walk, struct post_flight *call, __u32 accepted)
{
	walk->next = call->first;
	for (__u32 i = 0; i < MOST_REQUESTS && i < call->taken && walk->next; i++)
		settle_request(walk, call, i, accepted);
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
