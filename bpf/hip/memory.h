/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a process holds: allocations by address. A free takes its row away when it is called, since the library may
 * allocate the address for another thread before it has returned, and puts the row back if it fails. */
#pragma once
#include "functions.h"

struct process_key {
	__u32 tgid;
};
struct process {
	__u64 live;   /* rows of `live` */
	__u64 missed; /* calls on memory that were not seen to return, or freed what is not known; exec */
	__u64 execs;  /* programs before this one that have rows */
	__u64 own;    /* rows of this program */
};
MAP(processes, HASH, struct process_key, struct process, 4096);

struct live_key {
	__u32 tgid;
	__u32 zero;
	__u64 address;
};
struct live {
	__u64 bytes;
	enum memory memory;
	__u8 zero[3];
	__u32 program; /* of `execs` */
};
#define LIVE 65536
MAP(live, HASH, struct live_key, struct live, LIVE);
__u64 live_rows = 0;
const volatile __u64 live_most = LIVE;

struct total_key {
	__u32 tgid;
	enum memory memory;
	__u8 zero[3];
};
struct total { /* bytes, but for the last */
	__u64 allocated;
	__u64 freed;
	__u64 implicit;	 /* of addresses that were allocated once more: their free was not seen */
	__u64 untracked; /* without a row */
	__u64 unmatched_frees;
};
MAP(totals, HASH, struct total_key, struct total, 4096);

static __always_inline struct total *total_of(__u32 tgid, enum memory memory)
{
	static const struct total none;
	struct total_key key = {.tgid = tgid, .memory = memory};

	return lookup_or_init(totals, &key, &none);
}

/* What the process holds is not known any more. */
static __always_inline void lose_sight(__u32 tgid)
{
	static const struct process none;
	struct process_key key = {.tgid = tgid};
	struct process *process = lookup_or_init(processes, &key, &none);

	if (process)
		add(&process->missed, 1);
}

/* The program before holds nothing any more, but its rows stay until the exporter has noticed: until then what this one
 * holds is not known. Its own rows are counted, so that the exporter sees whether there were any. */
static void replace_program(__u32 tgid)
{
	struct process_key key = {.tgid = tgid};
	struct process *process = bpf_map_lookup_elem(&processes, &key);

	if (!process)
		return;
	process->missed = 1;
	process->execs++;
	process->own = 0;
}

static __always_inline bool put_row(const struct live_key *key, const struct live *row)
{
	static const struct process none;
	struct process_key owner = {.tgid = key->tgid};
	struct process *process = lookup_or_init(processes, &owner, &none);
	struct live new = *row;

	if (process)
		new.program = process->execs;
	if (!process || !has_share(process->live, live_rows, live_most) ||
	    insert(live, key, &new, BPF_NOEXIST)) {
		add(&live_lost, 1);
		return false;
	}
	add(&process->live, 1);
	add(&process->own, 1);
	add(&live_rows, 1);
	return true;
}

/* Removes what a program put. False if another thread was first. */
static __always_inline bool remove_row(const struct live_key *key, __u32 program)
{
	struct process_key owner = {.tgid = key->tgid};
	struct process *process = bpf_map_lookup_elem(&processes, &owner);

	if (bpf_map_delete_elem(&live, key))
		return false;
	add(&live_rows, -1);
	if (process)
		subtract_row(&process->live);
	if (process && (__u32)process->execs == program)
		subtract_row(&process->own);
	if (live_full_tick)
		live_full_tick = 0;
	return true;
}

static __noinline int hold(__u32 tgid, __u64 address, __u64 bytes, __u32 memory)
{
	struct live_key key = {.tgid = tgid, .address = address};
	struct live new = {.bytes = bytes, .memory = memory}, *held = bpf_map_lookup_elem(&live, &key);
	struct total *total;

	if (held) {
		struct live gone = *held;

		total = remove_row(&key, gone.program) ? total_of(tgid, gone.memory) : NULL;
		if (total)
			add(&total->implicit, gone.bytes);
	}
	total = total_of(tgid, memory);
	if (!total) { /* a free of it later must find nothing */
		lose_sight(tgid);
		return 0;
	}
	add(&total->allocated, bytes);
	if (!address || !put_row(&key, &new))
		add(&total->untracked, bytes);
	return 0;
}

/* A free is called, of which the record in flight is `call`: its other arguments are of no use any more. */
static __always_inline void take(struct call *call)
{
	struct live_key key = {.tgid = call->thread.tgid, .address = call->arguments[0]};
	struct live *held = bpf_map_lookup_elem(&live, &key);

	call->arguments[1] = 0;
	if (!held)
		return;
	call->arguments[1] = held->bytes;
	call->arguments[2] = held->memory;
	if (!remove_row(&key, held->program))
		call->arguments[1] = 0;
}

static __always_inline void put_back(const struct call *call)
{
	struct live_key key = {.tgid = call->thread.tgid, .address = call->arguments[0]};
	struct live row = {.bytes = call->arguments[1], .memory = call->arguments[2]};
	struct total *total;

	if (!row.bytes || put_row(&key, &row))
		return;
	total = total_of(key.tgid, row.memory);
	if (total)
		add(&total->untracked, row.bytes);
}

static __always_inline void complete_free(const struct call *call, enum memory usual)
{
	__u64 bytes = call->arguments[1];
	struct total *total;

	if (!call->arguments[0]) /* hipFree(NULL) succeeds and frees nothing */
		return;
	total = total_of(call->thread.tgid, bytes ? (enum memory)call->arguments[2] : usual);
	if (total && bytes)
		add(&total->freed, bytes);
	else if (total)
		add(&total->unmatched_frees, 1);
}

/* For `forget`: the rows of processes that have ended. */
static long drop_live(void *map, const struct live_key *at, const struct live *held, void *context)
{
	struct live_key key = *at;

	(void)map, (void)context;
	if (has_ended(key.tgid))
		remove_row(&key, held->program);
	return 0;
}
