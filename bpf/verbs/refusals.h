/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls of post_send and post_recv that failed: what is before *bad_wr was posted. */
#pragma once
#include "requests.h"

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
