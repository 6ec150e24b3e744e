/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which work request completed, and how long it took.
 *
 * Completions of a QP's send queue come in the order of its requests. Where poll_cq is observed at times only, the next
 * request to complete is searched in each window: a completion's wr_id has to be that of a single request that may be
 * outstanding. From then on order decides, and wr_id only contradicts. */
#pragma once
#include "posts.bpf.h"

__u64 completions_unread, completions_unmatched;

/* Of a receive queue a message's number is the place of its request. */
static __always_inline __u64 received_number(const struct queue *queue, __u64 at)
{
	return queue->created_ns && queue->messages < UNCOUNTED / 2 ? at : NOT_NUMBERED;
}

/* The whole number of a request that is outstanding: there are never as many as its low bits can number. */
static __always_inline __u64 message_number(const struct queue *queue, const struct request *request)
{
	__u64 newest = queue->messages - 1;

	if (!queue->created_ns || !is_message(request->opcode) || !queue->messages ||
	    queue->messages >= UNCOUNTED / 2)
		return NOT_NUMBERED;
	return newest - ((newest - request->message) & 0xffff);
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

/* The place of the one request with this wr_id that may be outstanding; ~0 if there is none or are several. Not
 * inlined: verified once. */
__noinline __u64 find_request(struct queue *queue, __u64 wr_id)
{
	struct search search = {.wr_id = wr_id};
	__u32 most;

	if (!queue)
		return ~0ull;
	search.at = queue->quiet;
	search.tail = queue->tail;
	most = queue->capacity && queue->capacity < QUEUE ? queue->capacity : QUEUE;
	if (search.tail > most && search.at < search.tail - most)
		search.at = search.tail - most;
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

	if (!is_whole(queue, bpf_get_current_pid_tgid() >> 32))
		return false;
	if (queue->window < window) {
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

/* The request that completed; NULL if it is not certain. Threads that poll at once may take each other's places. */
static __always_inline struct request *pop(struct queue *queue, __u64 window, __u64 wr_id, __u64 *at)
{
	struct request *request;

	if (!synchronise(queue, window, wr_id))
		return NULL;
	*at = __sync_fetch_and_add(&queue->head, 1);
	request = &queue->requests[*at % QUEUE];
	if (*at < queue->tail && request->wr_id == wr_id)
		return request;
	queue->synced = 0;
	return NULL;
}

static __always_inline void sent(struct seen *seen, struct queue *queue, const struct qp_key *qp, __u64 wr_id)
{
	struct request *request;
	__u64 at = 0, took;

	request = pop(queue, seen->window, wr_id, &at);
	if (!request) {
		add(&completions_unmatched, 1);
		return;
	}
	took = seen->now - request->posted_ns;
	if ((__s64)took < 0) { /* of another thread, which posted meanwhile */
		add(&completions_unmatched, 1);
		return;
	}
	count_time(qp->tgid, qp->context, timed_request, request->opcode, took);
	send_verbs_span(queue->address, request->posted_ns, seen->now, request->opcode, request->bytes, 0,
			message_number(queue, request), false);
	if (request->lone)
		count_time(qp->tgid, qp->context, timed_ack, 0, took);
}

static __always_inline void arrived(struct seen *seen, struct queue *queue, const struct user_wc *wc)
{
	__u64 at = 0;
	struct request *request = pop(queue, seen->window, wc->wr_id, &at);

	if (request && (__s64)(seen->now - request->posted_ns) >= 0)
		send_verbs_span(queue->address, request->posted_ns, seen->now, 0, wc->byte_len, 0,
				received_number(queue, at), true);
}

/* It may be of a send or a receive; all that is outstanding fails now. */
static __always_inline void failed(struct seen *seen, struct queue *queue, struct queue *received,
				   __u32 status)
{
	__u64 address = queue ? queue->address : received ? received->address : 0;

	if (queue) {
		queue->synced = 0;
		queue->quiet = queue->tail;
	}
	if (received) {
		received->synced = 0;
		received->quiet = received->tail;
	}
	if (!address)
		return;
	qp_failed(address);
	send_verbs_span(address, 0, seen->now, 0, 0, status, NOT_NUMBERED, false);
}

static __always_inline void count_completion(const struct seen *seen, __u32 code)
{
	static const __u64 none;
	struct status_key status = {.tgid = seen->from.tgid, .context = seen->from.context, .status = code};
	__u64 *count = shared_row(completions, status.tgid, &status, &none);

	if (count)
		add(count, 1);
}

/* Of a failed one only wr_id, status and QP are valid. Not inlined: verified once. */
__noinline int match_completion(struct seen *seen, struct user_wc *wc)
{
	struct queue *queue, *received;
	struct qp_key key = {};

	if (!seen || !wc)
		return 0;
	key.tgid = seen->from.tgid;
	key.context = seen->from.context;
	key.number = wc->qp_num;
	queue = bpf_map_lookup_elem(&queues, &key);
	received = bpf_map_lookup_elem(&receives, &key);
	if (wc->status)
		failed(seen, queue, received, wc->status);
	else if (!(wc->opcode & COMPLETED_RECEIVE) && queue)
		sent(seen, queue, &key, wc->wr_id);
	else if (wc->opcode & COMPLETED_RECEIVE && received)
		arrived(seen, received, wc);
	return 0;
}

/* Not inlined: verified once. */
__noinline int take_completion(struct seen *seen)
{
	struct user_wc wc;

	if (!seen)
		return 0;
	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)seen->at)) {
		add(&completions_unread, 1);
		return 0;
	}
	count_completion(seen, wc.status);
	return match_completion(seen, &wc);
}
