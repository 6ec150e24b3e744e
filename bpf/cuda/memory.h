/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What allocating and freeing calls do to `live` and `totals`.
 *
 * The library may hand an address out again before the call that freed it has returned. So a free takes its
 * entry away when it is called and puts it back if it fails; one found where a new one belongs was freed unseen. */
#pragma once
#include "live.h"
#include "pools.h"
#include "spans.h"
#include "streams.h"

/* What cudaMalloc3D fills in, and is given by value (driver_types.h). */
struct pitched {
	__u64 pointer, pitch, width, height;
};
struct extent {
	__u64 width, height, depth;
};

/* Where the caller put a structure that does not fit into registers: on the stack (above the return address),
 * or in memory that the argument's register points to. */
#if defined(__TARGET_ARCH_x86)
#define BY_VALUE(call, argument) ((void *)((call)->sp + 8))
#else
#define BY_VALUE(call, argument) ((void *)(call)->arguments[argument])
#endif

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
		struct location location = read_location(arguments[2] + LOCATION_AT);

		if (in_host(&location))
			outcome->memory = memory_pinned_host;
	}
}

/* Physical memory lies where its properties have it, whatever is current. */
static __always_inline __u16 device_of_handle(__u64 properties, __u16 current)
{
	struct location location = read_location(properties + LOCATION_AT);

	return on_device(&location) ? location.id + 1 : current;
}

/* Stream-ordered memory lies where the pool that the call names does, or the stream. */
static __always_inline void locate(__u32 tgid, const struct flight *call, enum memory *memory, __u16 *device)
{
	if (call->cookie.effect == effect_allocate_from)
		locate_in_pool(tgid, call, memory, device);
	else if (call->cookie.memory == memory_pool && *device)
		*device = device_of_stream(tgid, call->arguments[2], *device);
}

static __always_inline __u32 stack_of(const struct thread *thread)
{
	__u32 *id = bpf_map_lookup_elem(&stack_ids, thread), taken = id ? *id : 0;

	if (id)
		*id = 0;
	return taken;
}

#define OUT_OF_MEMORY 2 /* of cuda.h and driver_types.h */

/* The bytes that a failed call wanted; of rows at least, which are padded if the call succeeds. */
static __always_inline __u64 wanted_bytes(const struct flight *call)
{
	struct extent extent = {};

	if (call->cookie.effect == effect_allocate_pitch)
		return call->arguments[2] * call->arguments[3];
	if (call->cookie.effect != effect_allocate_extent)
		return call->arguments[1];
	bpf_probe_read_user(&extent, sizeof(extent), BY_VALUE(call, 1));
	return extent.width * extent.height * extent.depth;
}

/* Memory that was there before, and is only registered, is not allocated. */
static __always_inline void send_out_of_memory(const struct thread *thread, const struct flight *call)
{
	enum effect effect = call->cookie.effect;
	struct allocation *sent;

	if (effect != effect_allocate && effect != effect_allocate_from && effect != effect_allocate_pitch &&
	    effect != effect_allocate_extent && effect != effect_create)
		return;
	sent = reserve(allocations);
	if (!sent)
		return;
	*sent = (struct allocation){.bytes = wanted_bytes(call),
				    .tgid = thread->tgid,
				    .stack = stack_of(thread),
				    .layer = call->cookie.layer,
				    .memory = call->cookie.memory,
				    .device = device_of(thread_id(thread)),
				    .api = call->cookie.api,
				    .failed = 1};
	locate(thread->tgid, call, &sent->memory, &sent->device);
	bpf_ringbuf_submit(sent, BPF_RB_FORCE_WAKEUP);
}

static __always_inline void send_allocation(const struct live_key *key, const struct live *new)
{
	struct allocation *sent = reserve(allocations);

	if (!sent)
		return;
	*sent = (struct allocation){.bytes = new->bytes,
				    .tgid = key->tgid,
				    .stack = new->stack,
				    .layer = key->layer,
				    .memory = new->memory,
				    .device = new->device};
	bpf_ringbuf_submit(sent, wake_seldom(&allocations, new->since_ns, &allocations_woken_ns));
}

static __always_inline void allocate(const struct thread *thread, const struct flight *call, __u64 now,
				     struct outcome *outcome)
{
	bool handle = call->cookie.effect == effect_create, pooled = call->cookie.memory == memory_pool;
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
	/* Destroying a context frees neither handles nor pools (cuda.h, cuCtxDestroy). */
	if (!handle)
		new.owner = pooled ? NO_CONTEXT : current_context(thread);
	locate(thread->tgid, call, &new.memory, &new.device);
	outcome->memory = new.memory;
	outcome->device = new.device;
	/* On a stream that has joined a capture by an event it is a node of the graph. */
	new.doubtful = pooled &&captures_of(thread->tgid);
	if (profiled)
		new.stack = stack_of(thread);
	hold(&key, &new);
	if (profiled)
		send_allocation(&key, &new);
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

/* The end of a capture. If it began before the probes, what was allocated in it has been taken for memory: how much is in
 * use will not be known. The runtime's call comes after the driver's of the same capture. */
static __always_inline void complete_capture(const struct thread *thread, const struct flight *call)
{
	struct stream_key stream = captured_key(thread, call->arguments[0]);
	struct total_key key = {.tgid = thread->tgid, .layer = layer_driver, .memory = memory_pool};
	struct total *total;

	if (end_capture(&stream) || call->cookie.layer != layer_driver)
		return;
	key.device = device_of(thread_id(thread));
	if (key.device)
		key.device = device_of_stream(thread->tgid, call->arguments[0], key.device);
	total = bpf_map_lookup_elem(&totals, &key);
	if (total)
		add(&total->doubtful, 1);
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
