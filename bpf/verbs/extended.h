/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What one thread builds between ibv_wr_start and ibv_wr_complete, until it is posted and counted. */
#pragma once
#include "posts.bpf.h"

#define ATOMIC_WRITE_BYTES 8

/* enum ibv_wr_opcode by place; 0 where no request begins, too. */
static const __u8 opcodes_built[qp_calls] = {5, 6, 8, 7, 4, 0, 1, 2, 3, 9,  10,
					     0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 14};

/* Since when all calls that were ever sent to user space are probed. */
MAP(extended_since, ARRAY, __u32, __u64, 1);

struct user_data_buf {
	__u64 addr, length;
};

/* Whether the object with its pointers at `calls` has this function as this call. The cookie has the call's place in
 * its third byte, above it how far behind its beginning the function is probed. */
static __always_inline bool is_call(struct pt_regs *ctx, __u64 calls)
{
	__u64 cookie = bpf_get_attach_cookie(ctx), function = 0;

	calls += PT_REGS_PARM1(ctx) + sizeof(__u64) * (cookie >> 16 & 0xff);
	return !bpf_probe_read_user(&function, sizeof(function), (void *)calls) &&
	       function == PT_REGS_IP(ctx) - (cookie >> 32);
}

static __always_inline __u32 call_of(struct pt_regs *ctx)
{
	return bpf_get_attach_cookie(ctx) >> 16 & 0xff;
}

/* What this thread is posting to the queue pair that it calls; NULL if its beginning was not seen. */
static __always_inline struct extended_post *open_post(struct pt_regs *ctx)
{
	struct control_key key = control_key(PT_REGS_PARM1(ctx));
	struct extended_post *post;

	count_hit(hit_extended + call_of(ctx));
	if (!is_call(ctx, QP_EX_CALLS))
		return NULL;
	post = bpf_map_lookup_elem(&extended_posts, &key);
	return post && post->open ? post : NULL;
}

static __always_inline struct queue *queue_of(const struct extended_post *post)
{
	struct qp_key key = post->walk.life.qp;
	struct queue *queue = bpf_map_lookup_elem(&queues, &key);

	return queue && queue->created_ns == post->walk.life.created_ns ? queue : NULL;
}

static __always_inline void end_posting(struct queue *queue)
{
	if (queue && queue->posting)
		__sync_fetch_and_add(&queue->posting, -1);
}

/* Counts what was built; `one` is 0 if it was refused. */
static __always_inline void count_built(const struct extended_post *post, __u64 one)
{
	static const struct posted none;
	struct posted_key key = {.life = post->walk.life};

	for (__u32 opcode = 0; opcode <= OTHER_OPCODE; opcode++) {
		const struct posted *built = &post->counts[opcode];
		struct posted *counts;

		if (!(post->walk.opcodes >> opcode & 1))
			continue;
		key.opcode = opcode;
		counts = shared_row(posted, key.life.qp.tgid, &key, &none);
		if (!counts)
			continue;
		add(&counts->requests, built->requests * one);
		add(&counts->bytes, built->bytes * one);
		add(&counts->packets, built->packets * one);
		add(&counts->unsized, built->unsized * one);
	}
}

/* Whether what was built waits to be counted, for the one that finds it so. */
static __always_inline bool settles(struct extended_post *post)
{
	return post->unsettled && __sync_lock_test_and_set(&post->unsettled, 0);
}

/* No more segments come. */
static __always_inline void finish_request(struct extended_post *post, struct queue *queue)
{
	__u64 packets = 1, bytes = post->bytes;
	struct posted *counts;
	__u32 mtu = post->walk.mtu;

	if (!post->building || post->opcode > OTHER_OPCODE)
		return;
	post->building = 0;
	counts = &post->counts[post->opcode];
	if (post->opcode == OPCODE_LOCAL_INV || post->opcode == OPCODE_BIND_MW)
		packets = bytes = 0;
	else if (mtu && post->opcode != OPCODE_READ && bytes)
		packets = (bytes + mtu - 1) / mtu;
	counts->requests++;
	counts->bytes += bytes;
	counts->packets += mtu ? packets : 0;
	counts->unsized += !mtu;
	if (queue && post->signaled)
		queue->requests[(queue->tail + post->walk.signaled - 1) % QUEUE].bytes =
		    bytes > 0xffffffff ? 0xffffffff : bytes;
}

/* Behind the tail, where completions do not look yet. */
static __always_inline void stage(struct extended_post *post, struct queue *queue, __u64 wr_id)
{
	struct request *request = &queue->requests[(queue->tail + post->walk.signaled) % QUEUE];

	request->wr_id = wr_id;
	request->opcode = post->opcode;
	request->lone = 0;
	request->message = queue->messages + post->walk.messages;
}

static __always_inline __u64 buffer_bytes(__u64 list, __u64 count)
{
	struct user_data_buf buffer;
	__u64 bytes = 0;

	for (__u32 i = 0; i < MOST_SEGMENTS; i++) {
		if (i >= count)
			return bytes;
		if (bpf_probe_read_user(&buffer, sizeof(buffer), (void *)(list + i * sizeof(buffer))))
			break;
		bytes += buffer.length;
	}
	add(&bytes_unread, 1);
	return bytes;
}

/* Not inlined: verified once. */
__noinline int date(struct queue *queue, __u64 at, __u64 now)
{
	if (queue)
		queue->requests[at % QUEUE].posted_ns = now;
	return 0;
}

/* What was staged may complete from now on. */
static __always_inline void append_staged(struct extended_post *post, struct queue *queue, __u64 now)
{
	__u32 staged = post->walk.signaled;
	struct request *first = &queue->requests[queue->tail % QUEUE];

	for (__u32 i = 0; i < QUEUE && i < staged; i++)
		date(queue, queue->tail + i, now);
	if (staged && queue->tail && now - queue->posted_ns > LONG_SILENCE_NS)
		queue->quiet = queue->tail;
	if (staged == 1 && post->requests == 1)
		first->lone = post->walk.acknowledged &&
			      (first->opcode == OPCODE_WRITE || is_message(first->opcode)) && queue->synced &&
			      queue->head == queue->tail && !queue->unsignaled && post->walk.mtu &&
			      first->bytes <= post->walk.mtu;
	queue->unsignaled = staged ? post->unsignaled : queue->unsignaled + post->unsignaled;
	if (staged)
		queue->posted_ns = now;
	post->before = __sync_fetch_and_add(&queue->tail, staged);
	__sync_fetch_and_add(&queue->messages, post->walk.messages);
	if (post->walk.unread) {
		queue->synced = 0;
		queue->messages = UNCOUNTED;
	}
}

/* Of a call that failed nothing is posted (ibv_wr_post(3)). */
static __always_inline void take_all_back(struct extended_post *post)
{
	struct queue *queue = queue_of(post);

	if (!queue)
		return;
	if (queue->tail == post->before + post->walk.signaled)
		queue->tail = post->before;
	else
		queue->synced = 0;
	queue->messages -= post->walk.messages;
}
