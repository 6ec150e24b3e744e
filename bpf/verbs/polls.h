/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* When poll_cq is observed, and whether a thread polls so often that it must not be probed.
 * exporter/verbs/poll_sampling.py attaches and detaches; each file that it attaches to has a slot, which travels as the
 * uprobe's cookie. */
#pragma once
#include "control.h"
#include "hits.h"

#define POLL_SLOTS 256

/* By slot: since when every call of poll_cq is observed. */
MAP(windows, ARRAY, __u32, __u64, POLL_SLOTS);

const volatile __u64 poll_span_ns = 100000000;
const volatile __u64 polls_allowed = 0; /* of one thread in that time; 0: any number */

struct poll_rate_key {
	__u32 tgid, tid, slot;
};
struct poll_rate {
	__u64 since_ns, calls;
};
MAP(poll_rates, LRU_HASH, struct poll_rate_key, struct poll_rate, 8192);

struct poll_busy {
	__u32 slot;
	__u32 tgid;
};
EVENTS(poll_busy, struct poll_busy, 16 * 1024);

static __always_inline __u64 window_of(__u32 slot)
{
	__u64 *since = bpf_map_lookup_elem(&windows, &slot);

	return since ? *since : 0;
}

/* Sends a record once a span, when a thread polls more often in one file than is allowed. */
static __always_inline void count_poll(struct thread thread, __u32 slot, __u64 now)
{
	struct poll_rate_key key = {.tgid = thread.tgid, .tid = thread.tid, .slot = slot};
	struct poll_rate *rate, fresh = {.since_ns = now, .calls = 1};
	struct poll_busy *busy;

	if (!polls_allowed) {
		count_process(thread.tgid, hit_poll_cq, 1, 0);
		return;
	}
	rate = bpf_map_lookup_elem(&poll_rates, &key);
	if (!rate || now - rate->since_ns >= poll_span_ns) {
		if (rate) /* all at once: a lookup for each poll would make it dearer */
			count_process(thread.tgid, hit_poll_cq, rate->calls, 0);
		if (bpf_map_update_elem(&poll_rates, &key, &fresh, BPF_ANY))
			add(&poll_rates_lost, 1);
		return;
	}
	if (rate->calls++ != polls_allowed)
		return;
	busy = reserve(poll_busy);
	if (!busy)
		return;
	busy->slot = slot;
	busy->tgid = thread.tgid;
	bpf_ringbuf_submit(busy, 0);
}
