/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What mapping and unmapping of virtual memory do to `live`: a handle's memory is freed with its last mapping. */
#pragma once
#include "live.h"

#define MAPPINGS_PER_UNMAP 256
#define GRANULE                                                                                              \
	(2u << 20) /* of mappings (cuMemGetAllocationGranularity): they begin and end at multiples of it */

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

/* Ends the mapping at an address and gives its length; GRANULE where none was seen. */
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
		return GRANULE;
	key.thing = thing_handle;
	__builtin_memcpy(&key.address, range->handle, sizeof(key.address));
	found = bpf_map_lookup_elem(&live, &key);
	if (!found || found->owner != address)
		return GRANULE;
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

/* One call may end several adjoining mappings, each of them whole (cuda.h, cuMemUnmap); some may be older than the
 * probes. Of very many, a walk over the table finds the rest: milliseconds, as such a call takes anyway. */
static __always_inline void unmap(const struct thread *thread, const struct flight *call)
{
	__u64 at = call->arguments[0], end = at + call->arguments[1];

	for (__u32 i = 0; i < MAPPINGS_PER_UNMAP; i++) {
		if (at >= end)
			return;
		at += unmap_one(thread->tgid, at);
	}
	if (at < end)
		unmap_rest(thread->tgid, at, end);
}
