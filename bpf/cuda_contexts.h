/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which context is current to a thread: memory goes with the context it was allocated in. */
#pragma once
#include "cuda.h"

#define CONTEXT_STACK 8

struct contexts {
	__u64 depth;
	__u64 stack[CONTEXT_STACK];
};

/* Losing a thread's row only means not knowing its context, so the longest unused ones may go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64); /* tgid and tid */
	__type(value, struct contexts);
} contexts SEC(".maps");

struct device {
	__u32 tgid;
	__s32 ordinal;
};

struct primary {
	__u64 context;
	__u64 retained;
};
MAP(primaries, HASH, struct device, struct primary, 4096);

static __always_inline __u64 thread_id(const struct thread *thread)
{
	return (__u64)thread->tgid << 32 | thread->tid;
}

/* 0 if unknown. */
static __always_inline __u64 current_context(const struct thread *thread)
{
	__u64 id = thread_id(thread);
	struct contexts *known = bpf_map_lookup_elem(&contexts, &id);

	if (!known || !known->depth || known->depth > CONTEXT_STACK)
		return 0;
	return known->stack[(known->depth - 1) % CONTEXT_STACK];
}

static __always_inline void change_context(const struct thread *thread, enum effect effect, __u64 context)
{
	static const struct contexts none;
	__u64 id = thread_id(thread);
	struct contexts *known = bpf_map_lookup_elem(&contexts, &id);

	if (!known) {
		bpf_map_update_elem(&contexts, &id, &none, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&contexts, &id);
		if (!known)
			return;
	}
	/* Setting replaces the top of the stack, and with NULL takes it away (cuda.h, cuCtxSetCurrent). */
	if (known->depth && (effect == effect_context_pop || effect == effect_context_set))
		known->depth--;
	if (effect == effect_context_pop || !context)
		return;
	if (known->depth < CONTEXT_STACK) /* deeper ones are unknown */
		known->stack[known->depth % CONTEXT_STACK] = context;
	known->depth++;
}

static __always_inline void retain_primary(const struct thread *thread, const struct flight *call)
{
	static const struct primary none;
	struct device device = {thread->tgid, call->arguments[1]};
	struct primary *primary = lookup_or_init(primaries, &device, &none);

	if (!primary)
		return;
	primary->context = read_u64(call->arguments[0]);
	add(&primary->retained, 1);
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
