/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Times in which calls that post are not probed, as they cost more than their bound (exporter/governor): what was posted
 * in such a gap is not in the order of its queue pair. */
#pragma once
#include "qp.h"

#define GAP (~0ull)
#define OWN_RETURN                                                                                           \
	2 /* of a cookie: the returns of this process are probed by a link of its own, too (exporter/bpf/hook.py) */
#define NO_LIBRARY (MOST_LIBRARIES - 1) /* without a number: its calls are always probed */

/* By library: since when each call is probed; 0: since its probes were attached, GAP: not now. Set by the exporter. */
MAP(posts_since, ARRAY, __u32, __u64, MOST_LIBRARIES);

/* Processes with links of their own, which have no gaps, and since when. The programs for all leave them out. */
MAP(linked, HASH, __u32, __u64, 4096);
MAP(linked_processes, ARRAY, __u32, __u64, 1); /* rows of it: while there are none, nobody is looked up */

static __always_inline const __u64 *linked_since(__u32 tgid)
{
	__u32 only = 0;
	const __u64 *processes = bpf_map_lookup_elem(&linked_processes, &only);

	return processes && *processes ? bpf_map_lookup_elem(&linked, &tgid) : NULL;
}

static __always_inline __u64 all_since(__u32 library)
{
	const __u64 *since = bpf_map_lookup_elem(&posts_since, &library);

	return since ? *since : 0;
}

/* Whether all that was posted since the queue's oldest request was seen. */
static __always_inline bool is_whole(const struct queue *queue, __u32 tgid)
{
	const __u64 *linked = linked_since(tgid);
	__u64 since = linked ? *linked : all_since(queue->library);

	return queue->library == NO_LIBRARY || (since != GAP && since == queue->since);
}

/* Forgets what was outstanding on the other side of a gap. */
static __always_inline void begin_again(struct queue *queue, __u64 since)
{
	queue->since = since;
	queue->synced = 0;
	queue->messages = UNCOUNTED;
	queue->quiet = queue->tail;
	queue->unsignaled = 0;
	queue->posting = 0;
}
