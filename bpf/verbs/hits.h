/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls that were seen, which the exporter charges: of all processes by function, and of each process. */
#pragma once
#include "probe.h"

/* Calls seen; of the extended ones by place among the pointers of a queue pair and of a completion queue. */
enum hit { hit_post_send, hit_post_recv, hit_poll_cq, hit_extended, hit_extended_poll = 25, hits_most = 33 };
MAP(hits, PERCPU_ARRAY, __u32, __u64, hits_most);

/* Of one process: calls of post_send and post_recv, ends of extended posts, and polls, those of the last span not yet. */
struct process_hit {
	__u32 tgid;
	__u32 hit;
};
struct process_hits {
	__u64 calls;
	__u64 requests; /* in these */
};
MAP(process_hits, PERCPU_HASH, struct process_hit, struct process_hits, 2048);

static __always_inline void count_hit(__u32 hit)
{
	__u64 *seen = bpf_map_lookup_elem(&hits, &hit);

	if (seen)
		add(seen, 1);
}

static __always_inline void count_process(__u32 tgid, __u32 hit, __u64 calls, __u64 requests)
{
	static const struct process_hits none;
	struct process_hit key = {.tgid = tgid, .hit = hit};
	struct process_hits *seen = lookup_or_init(process_hits, &key, &none);

	if (!seen)
		return;
	add(&seen->calls, calls);
	add(&seen->requests, requests);
}
