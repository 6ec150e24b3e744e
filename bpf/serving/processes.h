/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Processes that are followed. */
#pragma once
#include "serving.h"

/* Followed processes, and the requests that they have begun and ended to answer. User space adds and removes processes. */
struct process {
	__u64 begun;
	__u64 ended;
};

static const struct process no_requests;
MAP(processes, HASH, __u32, struct process, MOST_PROCESSES);
/* Which processes may be followed, by the low bits of their ids: most calls are of others, and end here. */
MAP(candidates, ARRAY, __u32, __u32, CANDIDATES);

static __always_inline __u32 *candidate(__u32 tgid)
{
	__u32 key = tgid & (CANDIDATES - 1);

	return bpf_map_lookup_elem(&candidates, &key);
}

/* Follows a process. False where the table is full. */
static __always_inline bool follow(__u32 tgid)
{
	__u32 *maybe = candidate(tgid);

	if (!lookup_or_init(processes, &tgid, &no_requests))
		return false;
	if (maybe)
		*maybe = 1;
	return true;
}
