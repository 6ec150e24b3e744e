/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a process holds: allocations by address. A free takes its row away when it is called, since the library may
 * allocate the address for another thread before it has returned, and puts the row back if it fails. */
#pragma once
#include "devices.h"

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
	__u8 device;
	__u8 zero[2];
	__u32 program; /* of `execs` */
};
#define LIVE 65536
MAP(live, HASH, struct live_key, struct live, LIVE);
__u64 live_rows = 0;
const volatile __u64 live_most = LIVE;

struct total_key {
	__u32 tgid;
	enum memory memory;
	__u8 device;
	__u8 zero[2];
};
struct total { /* bytes, but for the last two */
	__u64 allocated;
	__u64 freed;
	__u64 implicit;	 /* of addresses that were allocated once more: their free was not seen */
	__u64 untracked; /* without a row */
	__u64 unmatched_frees;
	__u64 resets; /* of the device: what of these bytes it has freed is not known */
};
MAP(totals, HASH, struct total_key, struct total, 4096);

static __always_inline struct total *total_of(__u32 tgid, enum memory memory, __u8 device)
{
	static const struct total none;
	struct total_key key = {.tgid = tgid, .memory = memory, .device = device};

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

	replace_devices(tgid);
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

static __noinline int hold(__u32 tgid, __u64 address, __u64 bytes, __u32 memory, __u32 device)
{
	struct live_key key = {.tgid = tgid, .address = address};
	struct live new = {.bytes = bytes, .memory = memory, .device = device};
	const struct live *held = bpf_map_lookup_elem(&live, &key);
	struct total *total;

	if (held) {
		struct live gone = *held;

		total = remove_row(&key, gone.program) ? total_of(tgid, gone.memory, gone.device) : NULL;
		if (total)
			add(&total->implicit, gone.bytes);
	}
	total = total_of(tgid, memory, device);
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
	call->arguments[2] = held->memory | held->device << 8;
	if (!remove_row(&key, held->program))
		call->arguments[1] = 0;
}

static __always_inline void put_back(const struct call *call)
{
	struct live_key key = {.tgid = call->thread.tgid, .address = call->arguments[0]};
	struct live row = {.bytes = call->arguments[1],
			   .memory = call->arguments[2] & 255,
			   .device = call->arguments[2] >> 8};
	struct total *total;

	if (!row.bytes || put_row(&key, &row))
		return;
	total = total_of(key.tgid, row.memory, row.device);
	if (total)
		add(&total->untracked, row.bytes);
}

static __always_inline void complete_free(const struct call *call, enum memory usual)
{
	__u64 bytes = call->arguments[1], taken = call->arguments[2];
	struct total *total;

	if (!call->arguments[0]) /* hipFree(NULL) succeeds and frees nothing */
		return;
	total = bytes ? total_of(call->thread.tgid, taken & 255, taken >> 8)
		      : total_of(call->thread.tgid, usual, call->device);
	if (total && bytes)
		add(&total->freed, bytes);
	else if (total)
		add(&total->unmatched_frees, 1);
}

static __always_inline void reset_totals(__u32 tgid, __u8 device)
{
	struct total_key key = {.tgid = tgid, .device = device};
	struct total *total;

	for (int memory = memory_device; memory <= memory_pinned_host; memory++) {
		key.memory = memory;
		total = bpf_map_lookup_elem(&totals, &key);
		if (total)
			add(&total->resets, 1);
	}
}

/* A device was reset. Which of its memory that frees differs between releases, so what is held there is not known any more;
 * nor is what is held on a device that is not known. */
static __noinline int reset_device(__u32 tgid, __u32 device)
{
	const struct devices *process = bpf_map_lookup_elem(&devices, &tgid);

	if (device == DEVICE_UNKNOWN || (!device && process && process->streams & OLDER)) {
		lose_sight(tgid);
		return 0;
	}
	reset_totals(tgid, device);
	reset_totals(tgid, DEVICE_UNKNOWN);
	if (device <= 1)
		reset_totals(tgid, 1 - device); /* device 0 has two keys */
	return 0;
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
