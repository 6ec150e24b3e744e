/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What allocating, freeing and mapping calls do to `live` and `totals`.
 *
 * The library may hand an address out again before the call that freed it has returned. So a free takes its
 * entry away when it is called and puts it back if it fails; one found where a new one belongs was freed unseen. */
#pragma once
#include "contexts.h"
#include "ranges.h"

/* What cudaMalloc3D fills in, and is given by value (driver_types.h). */
struct pitched {
	__u64 pointer, pitch, width, height;
};
struct extent {
	__u64 width, height, depth;
};

#define LOCATION_AT 8 /* of CUmemAllocationProp.location (cuda.h) */
#define LOCATION_DEVICE 1
#define LOCATION_HOST 2
#define LOCATION_HOST_NUMA_CURRENT 4
#define MAPPINGS_PER_UNMAP 256

static __always_inline struct total *total_of(__u32 tgid, enum layer layer, enum memory memory, __u16 device)
{
	static const struct total none;
	struct total_key key = {.tgid = tgid, .layer = layer, .memory = memory, .device = device};

	return lookup_or_init(totals, &key, &none);
}

static __always_inline void count_free(const struct live_key *key, const struct live *live, bool implicit)
{
	struct total *total = total_of(key->tgid, key->layer, live->memory, live->device);

	if (total)
		add(implicit ? &total->implicit : &total->freed, live->bytes);
}

/* Whether a process may have one row of `live` more. So that none takes the room of all, only half of the table goes
 * to processes beyond an eighth of it. */
static __always_inline bool has_share(const struct process *process)
{
	return process->live < (live_most + 7) / 8 || live_rows < live_most / 2;
}

/* For a key that has no row. False, and counted, if it gets none. */
static __always_inline bool put_row(const struct live_key *key, const struct live *row)
{
	static const struct process none;
	struct process *process = lookup_or_init(processes, &key->tgid, &none);

	if (!process || !has_share(process) || insert(live, key, row, BPF_NOEXIST)) {
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
		add(&process->live, -1);
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
	if (!total) /* a free of it later must find nothing */
		return;
	add(&total->allocated, new->bytes);
	if (key->address && put_row(key, new))
		put_place(key, new);
	else
		lose(key, new);
}

/* Where the size and address of a successful allocation stand. */
static __always_inline void measure(const struct flight *call, struct outcome *outcome)
{
	const __u64 *arguments = call->arguments;

	outcome->memory = call->cookie.memory;
	outcome->address = call->cookie.effect == effect_register ? arguments[0] : read_u64(arguments[0]);
	outcome->bytes = arguments[1];
	if (call->cookie.effect == effect_allocate_pitch) {
		outcome->bytes = read_u64(arguments[1]) * arguments[3];
	} else if (call->cookie.effect == effect_allocate_extent) {
		struct pitched made = {};
		struct extent extent = {};

		bpf_probe_read_user(&made, sizeof(made), (void *)arguments[0]);
		bpf_probe_read_user(&extent, sizeof(extent), BY_VALUE(call, 1));
		outcome->bytes = made.pitch * extent.height * extent.depth;
	} else if (call->cookie.effect == effect_create) {
		__u32 location = 0;

		bpf_probe_read_user(&location, sizeof(location), (void *)(arguments[2] + LOCATION_AT));
		if (location >= LOCATION_HOST && location <= LOCATION_HOST_NUMA_CURRENT)
			outcome->memory = memory_pinned_host;
	}
}

/* Physical memory lies where its properties say, whatever is current. */
static __always_inline __u16 device_of_handle(__u64 properties, __u16 current)
{
	struct {
		__u32 type, id;
	} location = {};

	bpf_probe_read_user(&location, sizeof(location), (void *)(properties + LOCATION_AT));
	return location.type == LOCATION_DEVICE && location.id < 64 ? location.id + 1 : current;
}

static __always_inline void allocate(const struct thread *thread, const struct flight *call, __u64 now,
				     struct outcome *outcome)
{
	bool handle = call->cookie.effect == effect_create;
	struct live_key key = {.tgid = thread->tgid, .layer = call->cookie.layer};
	struct live new = {.since_ns = now, .refs = 1};

	measure(call, outcome);
	if (!outcome->bytes)
		return; /* cudaMalloc(&p, 0) succeeds and gives nothing */
	key.thing = handle ? thing_handle : thing_allocation;
	key.address = outcome->address;
	new.bytes = outcome->bytes;
	new.memory = outcome->memory;
	new.device = device_of(thread_id(thread));
	if (handle && new.device)
		new.device = device_of_handle(call->arguments[2], new.device);
	/* Destroying a context does not free these two kinds (cuda.h, cuCtxDestroy). */
	if (!handle && outcome->memory != memory_pool)
		new.owner = current_context(thread);
	hold(&key, &new);
}

/* Pools are in no range: of a process that has one of host memory, it is not known what kind the rest is. */
static __always_inline void watch_pool(const struct thread *thread, const struct flight *call)
{
	__u8 at = call->cookie.bytes_at;
	__u32 location = LOCATION_HOST;

	if (at != NO_ARGUMENT)
		bpf_probe_read_user(&location, sizeof(location), (void *)(call->arguments[1] + at));
	if (location != LOCATION_DEVICE)
		make_unsure(thread->tgid);
}

static __always_inline struct live_key freed_key(const struct thread *thread, const struct flight *call)
{
	return (struct live_key){.tgid = thread->tgid,
				 .layer = call->cookie.layer,
				 .thing =
				     call->cookie.effect == effect_release ? thing_handle : thing_allocation,
				 .address = call->arguments[0]};
}

/* A free is called: takes away what it would free. Of a handle that stays in use, one holder. */
static __always_inline void take(const struct thread *thread, struct flight *call)
{
	struct live_key key = freed_key(thread, call);
	struct live *held = bpf_map_lookup_elem(&live, &key);

	if (!held)
		return;
	if (key.thing == thing_handle && (__sync_fetch_and_sub(&held->refs, 1) != 1 || held->mappings)) {
		call->taken.since_ns = held->since_ns;
		return;
	}
	call->taken = *held;
	call->taken.refs = 1; /* if it has to be put back */
	if (remove_row(&key))
		put_live(&key, &call->taken, true);
	else
		__builtin_memset(&call->taken, 0, sizeof(call->taken));
}

/* The free failed: undoes what take() did. */
static __always_inline void put_back(const struct thread *thread, const struct flight *call)
{
	struct live_key key = freed_key(thread, call);
	const struct live *taken = &call->taken;
	struct live *held;

	if (taken->bytes) {
		if (put_row(&key, taken))
			put_place(&key, taken);
		else
			lose(&key, taken);
		return;
	}
	held = taken->since_ns ? bpf_map_lookup_elem(&live, &key) : NULL;
	if (held && held->since_ns == taken->since_ns)
		__sync_fetch_and_add(&held->refs, 1);
}

/* The free succeeded. */
static __always_inline void complete_free(const struct thread *thread, const struct flight *call)
{
	struct live_key key = freed_key(thread, call);
	struct total *total;

	if (call->taken.bytes) {
		count_free(&key, &call->taken, false);
	} else if (!call->taken.since_ns && key.address && key.thing != thing_handle) {
		/* Handles without a row are imported ones and multicast objects as a rule. */
		total = total_of(key.tgid, key.layer, call->cookie.memory, device_of(thread_id(thread)));
		if (total)
			add(&total->unmatched_frees, 1);
	}
}

static __always_inline void retain(const struct thread *thread, const struct flight *call)
{
	struct live_key key = {.tgid = thread->tgid, .layer = layer_driver, .thing = thing_handle};
	struct live *held;

	key.address = read_u64(call->arguments[0]);
	held = bpf_map_lookup_elem(&live, &key);
	if (held)
		__sync_fetch_and_add(&held->refs, 1);
}

/* One mapping less; the last one frees a handle that was released before. */
static __always_inline void unmap_handle(const struct live_key *handle, struct live *held)
{
	struct live gone;

	if (__sync_fetch_and_sub(&held->mappings, 1) != 1 || held->refs)
		return;
	gone = *held;
	if (remove_row(handle))
		count_free(handle, &gone, false);
}

/* Ends the mapping at an address and gives its length, 0 if there is none. */
__noinline __u64 unmap_one(__u32 tgid, __u64 address)
{
	struct live_key key = {
	    .tgid = tgid, .layer = layer_driver, .thing = thing_mapping, .address = address};
	struct live *found = bpf_map_lookup_elem(&live, &key), mapping;
	const struct range *range;

	if (found) {
		mapping = *found;
		put_live(&key, &mapping, true);
		remove_row(&key);
		key.thing = thing_handle;
		key.address = mapping.owner;
		found = bpf_map_lookup_elem(&live, &key);
		if (found && found->since_ns == mapping.since_ns)
			unmap_handle(&key, found);
		return mapping.bytes;
	}
	range = range_of(tgid, address);
	if (!range)
		return 0;
	key.thing = thing_handle;
	__builtin_memcpy(&key.address, range->handle, sizeof(key.address));
	found = bpf_map_lookup_elem(&live, &key);
	if (!found || found->owner != address)
		return 0;
	mapping = *found;
	put_live(&key, &mapping, true);
	if (__sync_val_compare_and_swap(&found->owner, address, 0) == address)
		unmap_handle(&key, found);
	return mapping.bytes;
}

/* The mapping is kept in its handle's row: of a handle that is mapped whole and once, as most are. */
static __always_inline bool map_in_handle(const struct live_key *handle, struct live *held, __u64 address,
					  __u64 bytes)
{
	struct live mapped;

	if (held->bytes != bytes || __sync_val_compare_and_swap(&held->owner, 0, address))
		return false;
	mapped = *held;
	if (!put_live(handle, &mapped, false)) {
		__sync_fetch_and_add(&held->mappings, 1);
		return true;
	}
	held->owner = 0;
	return false;
}

static __always_inline void map_handle(const struct thread *thread, const struct flight *call)
{
	struct live_key key = {.tgid = thread->tgid, .layer = layer_driver, .thing = thing_handle};
	struct live mapping = {
	    .bytes = call->arguments[1], .owner = call->arguments[3], .memory = memory_vmm};
	struct live *held;

	unmap_one(thread->tgid, call->arguments[0]); /* what is there still was unmapped unseen */
	key.address = mapping.owner;
	held = bpf_map_lookup_elem(&live, &key);
	if (held && map_in_handle(&key, held, call->arguments[0], mapping.bytes))
		return;
	if (held) { /* else it was imported, or is older than the probes: addresses are looked up there all the same */
		mapping.since_ns = held->since_ns;
		mapping.memory = held->memory;
	}
	key.thing = thing_mapping;
	key.address = call->arguments[0];
	if (put_row(&key, &mapping)) {
		put_place(&key, &mapping);
		if (held)
			__sync_fetch_and_add(&held->mappings, 1);
		return;
	}
	make_unsure(key.tgid);
	if (held) { /* its release would free what is still mapped */
		key.thing = thing_handle;
		key.address = mapping.owner;
		mapping = *held;
		put_live(&key, &mapping, true);
		if (remove_row(&key))
			lose(&key, &mapping);
	}
}

struct unmapped {
	__u64 at, end;
	__u64 tgid;
};

static long unmap_each(void *map, const struct live_key *at, const struct live *held,
		       const struct unmapped *range)
{
	__u64 address = 0;

	(void)map;
	if (at->tgid != range->tgid)
		return 0;
	if (at->thing == thing_mapping)
		address = at->address;
	else if (at->thing == thing_handle)
		address = held->owner;
	if (address && address >= range->at && address < range->end)
		unmap_one(range->tgid, address);
	return 0;
}

static __noinline int unmap_rest(__u32 tgid, __u64 at, __u64 end)
{
	struct unmapped range = {.at = at, .end = end, .tgid = tgid};

	return bpf_for_each_map_elem(&live, unmap_each, &range, 0);
}

/* One call may end several adjoining mappings, each of them whole (cuda.h, cuMemUnmap). Of very many, a walk over the
 * table finds the rest: milliseconds, as such a call takes anyway. */
static __always_inline void unmap(const struct thread *thread, const struct flight *call)
{
	__u64 at = call->arguments[0], end = at + call->arguments[1], bytes;

	for (__u32 i = 0; i < MAPPINGS_PER_UNMAP; i++) {
		if (at >= end)
			return;
		bytes = unmap_one(thread->tgid, at);
		if (!bytes)
			return;
		at += bytes;
	}
	if (at < end)
		unmap_rest(thread->tgid, at, end);
}

struct sweep {
	__u32 tgid;
	__u32 zero;
	__u64 context; /* 0: everything of the processes that ended */
	__u64 before_ns;
};

static long drop(void *map, const struct live_key *at, const struct live *held, const struct sweep *sweep)
{
	struct live_key key;
	struct live gone;

	(void)map;
	if (!sweep->context) {
		if (!has_ended(at->tgid))
			return 0;
	} else if (at->tgid != sweep->tgid || at->thing != thing_allocation ||
		   held->owner != sweep->context || held->since_ns > sweep->before_ns) {
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
