/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is dropped where calls that allocate and free are not seen for a while: which memory is still in use, and what an
 * address belongs to, is then not known any more. */
#pragma once
#include "calls.h"
#include "memory.h"

static __always_inline void count_in_window(__u64 thread, __u16 api)
{
	static const __u64 none;
	struct call_key key = {.tgid = thread >> 32, .api = api};
	__u32 index = api;
	__u64 *count = bpf_map_lookup_elem(&windows, &index);

	if (count)
		add(count, 1);
	count = lookup_or_init(window_calls, &key, &none);
	if (count)
		add(count, 1);
	count_call(thread, api);
}

DROP(window_calls, struct call_key)

/* What was allocated before is freed unseen, if at all. Handles stay: their functions are probed all the time. */
static long lose_live(void *map, const struct live_key *at, struct live *held, const __u32 *tgid)
{
	struct live_key key = *at;
	struct live gone = *held;

	(void)map;
	if (key.tgid != *tgid || key.thing != thing_allocation || !remove_row(&key))
		return 0;
	put_live(&key, &gone, true);
	lose(&key, &gone);
	return 0;
}

/* A call of which the return is not seen. What a free took away may not have been freed. */
static long lose_flight(void *map, const struct thread *at, const struct flight *call, const __u32 *tgid)
{
	struct thread thread = *at;
	struct flight gone;

	(void)map;
	if (thread.tgid != *tgid || !call->sp || group_of(call->cookie.effect) != group_memory ||
	    is_current(call, thread.tgid))
		return 0;
	gone = *call;
	remove_flight(&thread);
	if (gone.cookie.effect == effect_free && gone.taken.bytes) {
		struct live_key key = freed_key(&thread, &gone);

		lose(&key, &gone.taken);
	}
	return 0;
}
