/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The rows of `live`, what a process has allocated, with their ranges and totals: put, removed, and swept away when a
 * context or the process ends. */
#pragma once
#include "contexts.h"
#include "ranges.h"

static __always_inline struct total *total_of(__u32 tgid, enum layer layer, enum memory memory, __u16 device)
{
	static const struct total none;
	struct total_key key = {.tgid = tgid, .layer = layer, .memory = memory, .device = device};

	return row_of(totals, &key, &none);
}

static __always_inline void count_free(const struct live_key *key, const struct live *live, bool implicit)
{
	struct total *total = total_of(key->tgid, key->layer, live->memory, live->device);

	if (!total)
		return;
	add(implicit ? &total->implicit : &total->freed, live->bytes);
	if (live->doubtful)
		add(&total->doubtful, -live->bytes);
}

/* Its context is not known, and one has ended that may have been it. */
static __always_inline void doubt(const struct live_key *key, struct live *held)
{
	struct total *total = total_of(key->tgid, key->layer, held->memory, held->device);

	if (!total || held->doubtful)
		return;
	held->doubtful = 1;
	add(&total->doubtful, held->bytes);
}

/* For a key that has no row. False, and counted, if it gets none. */
static __always_inline bool put_row(const struct live_key *key, const struct live *row)
{
	static const struct process none;
	struct process *process = lookup_or_init(processes, &key->tgid, &none);

	if (!process || !has_share(process->live, live_rows, live_most) ||
	    insert(live, key, row, BPF_NOEXIST)) {
		add(&live_lost, 1);
		return false;
	}
	add(&process->live, 1);
	add(&live_rows, 1);
	return true;
}

/* False if another thread was first. */
static __always_inline bool remove_row(const struct live_key *key)
{
	struct process *process = bpf_map_lookup_elem(&processes, &key->tgid);

	if (bpf_map_delete_elem(&live, key))
		return false;
	add(&live_rows, -1);
	if (process)
		subtract_row(&process->live);
	if (live_full_tick)
		live_full_tick = 0;
	return true;
}

/* An allocation without a row: what frees it will find nothing. */
static __always_inline void lose(const struct live_key *key, const struct live *row)
{
	struct total *total = total_of(key->tgid, key->layer, row->memory, row->device);

	if (total)
		add(&total->untracked, row->bytes);
	if (key->layer == layer_driver && row->memory >= memory_managed)
		make_unsure(key->tgid);
}

/* A row's range; where there is no room for it, host memory is of an unknown kind from here on. */
static __always_inline void put_place(const struct live_key *key, const struct live *row)
{
	if (put_live(key, row, false) && row->memory != memory_device)
		make_unsure(key->tgid);
}

static __always_inline void hold(const struct live_key *key, const struct live *new)
{
	struct live *old = bpf_map_lookup_elem(&live, key);
	struct total *total;

	if (old) {
		struct live gone = *old;

		put_live(key, &gone, true);
		count_free(key, &gone, !(key->thing == thing_handle && !gone.refs));
		remove_row(key);
	}
	total = total_of(key->tgid, key->layer, new->memory, new->device);
	if (!total) { /* a free of it later must find nothing */
		lose_memory(key->tgid);
		return;
	}
	add(&total->allocated, new->bytes);
	if (!key->address || !put_row(key, new)) {
		lose(key, new);
		return;
	}
	put_place(key, new);
	if (new->doubtful)
		add(&total->doubtful, new->bytes);
}

struct sweep {
	__u32 tgid;
	__u32 zero;
	__u64 context; /* 0: everything of the processes that ended */
	__u64 before_ns;
};

/* Whether the end of a context takes this along, if that was its owner. */
static __always_inline bool goes_with_context(const struct live_key *key, const struct live *held,
					      const struct sweep *sweep)
{
	return key->tgid == sweep->tgid && key->thing == thing_allocation && held->owner != NO_CONTEXT &&
	       held->since_ns <= sweep->before_ns;
}

static long drop(void *map, const struct live_key *at, struct live *held, const struct sweep *sweep)
{
	struct live_key key;
	struct live gone;

	(void)map;
	if (!sweep->context) {
		if (!has_ended(at->tgid))
			return 0;
	} else if (!goes_with_context(at, held, sweep)) {
		return 0;
	} else if (held->owner != sweep->context) {
		key = *at;
		if (!held->owner)
			doubt(&key, held);
		return 0;
	}
	key = *at;
	gone = *held;
	if (!remove_row(&key))
		return 0;
	put_live(&key, &gone, true);
	if (sweep->context)
		count_free(&key, &gone, true);
	return 0;
}

static __noinline int sweep_live(__u32 tgid, __u64 context, __u64 before_ns)
{
	struct sweep sweep = {.tgid = tgid, .context = context, .before_ns = before_ns};
	struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	return process && process->live ? bpf_for_each_map_elem(&live, drop, &sweep, 0) : 0;
}

#define CONTEXT_ENDS_PER_SECOND 32

/* A context has ended. Walking the whole table would keep the thread that ended it for milliseconds, so the exporter
 * does it (`sweep`), but where these are more than it should be troubled with. */
static __always_inline void end_context(__u32 tgid, __u64 context, __u64 now)
{
	static struct rate ends;
	struct process *process = bpf_map_lookup_elem(&processes, &tgid);
	struct context_end *end;

	if (!process || !process->live)
		return;
	end = within_rate(&ends, now, CONTEXT_ENDS_PER_SECOND)
		  ? bpf_ringbuf_reserve(&context_ends, sizeof(*end), 0)
		  : NULL;
	if (!end) {
		sweep_live(tgid, context, now);
		return;
	}
	*end = (struct context_end){.context = context, .before_ns = now, .tgid = tgid};
	bpf_ringbuf_submit(end, 0);
}

/* A device was reset of which the context is not known. Of a process seen from its first call on it had none, or the
 * driver's call for it was seen. */
static __always_inline void end_unknown_context(__u32 tgid)
{
	const struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	if (process && process->live && !bpf_map_lookup_elem(&covered, &tgid))
		lose_memory(tgid);
}
