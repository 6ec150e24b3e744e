/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is dropped of processes that have ended, besides their counts. */
#pragma once
#include "calls.h"
#include "contexts.h"
#include "pools.h"
#include "streams.h"

static long drop_flight(void *map, const struct thread *at, const struct flight *value, void *unused)
{
	struct thread key = *at;

	(void)map, (void)value, (void)unused;
	if (has_no_threads(key.tgid))
		remove_flight(&key);
	return 0;
}

static long drop_context(void *map, const __u64 *at, const void *value, void *unused)
{
	__u64 key = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(key >> 32))
		bpf_map_delete_elem(&contexts, &key);
	return 0;
}

DROP(primaries, struct device)
DROP(context_devices, struct context)
DROP(pools, struct pool_key)
DROP(streams, struct stream_key)
DROP(captured, struct stream_key)

static long add_live(void *map, const __u32 *tgid, const void *value, __u64 *rows)
{
	const struct process *process = bpf_map_lookup_elem(&processes, tgid);

	(void)map, (void)value;
	if (process)
		*rows += process->live;
	return 0;
}

static long drop_process(void *map, const __u32 *tgid, const void *value, void *unused)
{
	const struct devices *devices = bpf_map_lookup_elem(&used_devices, tgid);
	const struct process *process = bpf_map_lookup_elem(&processes, tgid);

	(void)map, (void)value, (void)unused;
	if (devices && devices->used & (devices->used - 1))
		add(&with_several, -1);
	if (process)
		return_shares(process);
	bpf_map_delete_elem(&used_devices, tgid);
	bpf_map_delete_elem(&processes, tgid);
	return 0;
}
