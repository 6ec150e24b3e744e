/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which context is current to a thread: memory goes with the context it was allocated in. */
#pragma once
#include "rows.h"

#define CONTEXT_STACK 8

/* The top of the thread's stack, as far as it is known: `depth` contexts, the newest at `top`, each with how often it
 * lies there in a row, since frameworks push the current one again with every call. What lies below them is unknown, so
 * that a push too many forgets the lowest one and no pop makes a wrong one current. */
struct contexts {
	__u32 depth;
	__u32 top;
	__u64 stack[CONTEXT_STACK];
	__u32 times[CONTEXT_STACK];
};

/* Losing a thread's row only means not knowing its context, so the longest unused ones may go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64); /* tgid and tid */
	__type(value, struct contexts);
} contexts SEC(".maps");

#define MOST_DEVICES 64 /* of a process: more than there are in any machine */

struct device {
	__u32 tgid;
	__s32 ordinal;
};

struct primary {
	__u64 context;
	__u64 retained;
};
MAP(primaries, HASH, struct device, struct primary, 4096);

struct context {
	__u64 address;
	__u32 tgid;
	__u32 zero;
};
MAP(context_devices, HASH, struct context, __u32, 16384);

/* Of a process: on which devices it has ever had a context. */
struct devices {
	__u64 used; /* a bit for each ordinal */
	__u32 first;
	__u32 zero;
	__u64 since_ns; /* of the newest of them */
};
MAP(used_devices, HASH, __u32, struct devices, 4096);
__u64 with_several =
    0; /* processes that used more than one device: while there are none, nobody is looked up */

static __always_inline __u64 thread_id(const struct thread *thread)
{
	return (__u64)thread->tgid << 32 | thread->tid;
}

/* 0 if unknown. */
static __always_inline __u64 current_context(const struct thread *thread)
{
	__u64 id = thread_id(thread);
	struct contexts *known = bpf_map_lookup_elem(&contexts, &id);

	return known && known->depth ? known->stack[known->top % CONTEXT_STACK] : 0;
}

/* ordinal + 1, 0 if unknown. */
static __always_inline __u16 device_of_context(__u32 tgid, __u64 address)
{
	struct context context = {.address = address, .tgid = tgid};
	__u32 *ordinal = address ? bpf_map_lookup_elem(&context_devices, &context) : NULL;

	return ordinal ? *ordinal + 1 : 0;
}

static __noinline int device_of_several(__u64 thread)
{
	struct thread at = {.tgid = thread >> 32, .tid = thread};
	struct devices *devices = bpf_map_lookup_elem(&used_devices, &at.tgid);
	__u16 device;

	if (!devices || !(devices->used & (devices->used - 1)))
		return 0;
	device = device_of_context(at.tgid, current_context(&at));
	return device ? device : DEVICE_UNKNOWN;
}

/* What goes into keys, for the thread with this id (bpf_get_current_pid_tgid). */
static __always_inline __u16 device_of(__u64 thread)
{
	return with_several ? device_of_several(thread) : 0;
}

/* The process has a context there from now on. */
static __always_inline void use_device(__u32 tgid, __u64 address, __u32 ordinal)
{
	static const struct devices none;
	struct context context = {.address = address, .tgid = tgid};
	struct devices *devices = lookup_or_init(used_devices, &tgid, &none);
	__u64 bit = 1ull << (ordinal % MOST_DEVICES), before;
	__u32 *known;

	if (!devices || !address || ordinal >= MOST_DEVICES)
		return;
	known = row_of(context_devices, &context, &ordinal);
	if (known)
		*known = ordinal;
	before =
	    __sync_fetch_and_or(&devices->used, bit); /* of threads that come at once, one sees one bit */
	if (!(before & bit))
		devices->since_ns = bpf_ktime_get_ns();
	if (!before)
		devices->first = ordinal;
	else if (!(before & bit) && !(before & (before - 1)))
		add(&with_several, 1);
}

static __always_inline void forget_context(__u32 tgid, __u64 address)
{
	struct context context = {.address = address, .tgid = tgid};

	if (!bpf_map_delete_elem(&context_devices, &context))
		return_row(tgid, table_context_devices);
}

static __always_inline void change_context(const struct thread *thread, enum effect effect, __u64 context)
{
	static const struct contexts none;
	__u64 id = thread_id(thread);
	struct contexts *known = bpf_map_lookup_elem(&contexts, &id);
	__u32 top;

	if (!known) {
		bpf_map_update_elem(&contexts, &id, &none, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&contexts, &id);
		if (!known)
			return;
	}
	/* Setting replaces the top of the stack, and with NULL takes it away (cuda.h, cuCtxSetCurrent). */
	top = known->top % CONTEXT_STACK;
	if (known->depth && (effect == effect_context_pop || effect == effect_context_set) &&
	    !--known->times[top]) {
		known->depth--;
		top = --known->top % CONTEXT_STACK;
	}
	if (effect == effect_context_pop || !context)
		return;
	if (known->depth && known->stack[top] == context) {
		known->times[top]++;
		return;
	}
	top = ++known->top % CONTEXT_STACK;
	known->stack[top] = context;
	known->times[top] = 1;
	if (known->depth < CONTEXT_STACK)
		known->depth++;
}

static __always_inline void retain_primary(const struct thread *thread, const struct flight *call)
{
	static const struct primary none;
	struct device device = {thread->tgid, call->arguments[1]};
	__u64 context = read_u64(call->arguments[0]);
	struct primary *primary = NULL;

	if ((__u32)device.ordinal < MOST_DEVICES)
		primary = row_of(primaries, &device, &none);
	if (primary) {
		primary->context = context;
		add(&primary->retained, 1);
	} else { /* what its end takes along would not be known */
		lose_memory(thread->tgid);
	}
	use_device(thread->tgid, context, device.ordinal);
}

/* The primary context that ends when this call has succeeded, 0 if none or unknown. */
static __always_inline __u64 ended_primary(const struct thread *thread, const struct flight *call)
{
	struct device device = {thread->tgid, call->arguments[0]};
	struct primary *primary = bpf_map_lookup_elem(&primaries, &device);

	if (!primary)
		return 0;
	if (call->cookie.effect == effect_primary_reset)
		return primary->context;
	/* The last release ends it; there may be retentions we did not see unless we saw all. */
	if (!primary->retained || __sync_fetch_and_sub(&primary->retained, 1) != 1 ||
	    !bpf_map_lookup_elem(&covered, &device.tgid))
		return 0;
	return primary->context;
}
