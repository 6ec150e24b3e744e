/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Where the memory of each pool lies, whatever context is current to a thread that allocates from it. */
#pragma once
#include "contexts.h"
#include "ranges.h"

#define TYPE_MANAGED 2 /* CU_MEM_ALLOCATION_TYPE_MANAGED */

struct location { /* CUmemLocation (cuda.h) */
	__u32 type;
	__s32 id;
};
#define LOCATION_AT 8 /* of CUmemAllocationProp and CUmemPoolProps, after the type of allocation */
#define LOCATION_DEVICE 1
#define LOCATION_HOST 2
#define LOCATION_HOST_NUMA_CURRENT 4

static __always_inline bool in_host(const struct location *location)
{
	return location->type >= LOCATION_HOST && location->type <= LOCATION_HOST_NUMA_CURRENT;
}

static __always_inline bool on_device(const struct location *location)
{
	return location->type == LOCATION_DEVICE && (__u32)location->id < MOST_DEVICES;
}

static __always_inline struct location read_location(__u64 at)
{
	struct location location = {};

	bpf_probe_read_user(&location, sizeof(location), (void *)at);
	return location;
}

struct pool_key {
	__u64 handle;
	__u32 tgid;
	__u32 zero;
};

struct pool {
	struct location location;
	__u64 since_ns;
};
MAP(pools, HASH, struct pool_key, struct pool, 4096);

static __always_inline void forget_pool(const struct pool_key *key)
{
	if (!bpf_map_delete_elem(&pools, key))
		return_row(key->tgid, table_pools);
}

/* A pool was destroyed. Another thread may have been given its handle for a new one before the call returned. */
static __always_inline void destroy_pool(const struct thread *thread, const struct flight *call)
{
	struct pool_key key = {.handle = call->arguments[0], .tgid = thread->tgid};
	const struct pool *known = bpf_map_lookup_elem(&pools, &key);

	if (known && known->since_ns <= call->start_ns)
		forget_pool(&key);
}

/* Where the pool that a call gave lies; of no type if it is an imported one. The pages of managed memory move. */
static __always_inline struct location given_location(const struct flight *call)
{
	const __u64 *arguments = call->arguments;
	__u32 type = arguments[2];

	switch (call->cookie.effect) {
	case effect_pool_create:
		bpf_probe_read_user(&type, sizeof(type), (void *)arguments[1]);
		break;
	case effect_pool_at:
		break;
	case effect_pool_of_device:
		return (struct location){LOCATION_DEVICE, arguments[1]};
	default:
		return (struct location){};
	}
	if (type == TYPE_MANAGED)
		return (struct location){};
	return read_location(arguments[1] + (call->cookie.effect == effect_pool_create ? LOCATION_AT : 0));
}

/* Pools are in no range: of a process that has one of host memory, it is not known what kind the rest is. */
static __always_inline void note_pool(const struct thread *thread, const struct flight *call, __u64 now)
{
	struct pool_key key = {.handle = read_u64(call->arguments[0]), .tgid = thread->tgid};
	struct pool pool = {.location = given_location(call), .since_ns = now};
	struct pool *known;

	if (pool.location.type != LOCATION_DEVICE)
		make_unsure(thread->tgid);
	if (!in_host(&pool.location) && !on_device(&pool.location)) {
		forget_pool(&key);
		return;
	}
	known = row_of(pools, &key, &pool);
	if (known)
		*known = pool;
}

/* The device's number for keys: 0 if the process has used no other one. */
static __always_inline __u16 device_among(__u32 tgid, __u32 ordinal, __u16 current)
{
	const struct devices *devices = current ? NULL : bpf_map_lookup_elem(&used_devices, &tgid);

	return current || (devices && devices->used && devices->first != ordinal) ? ordinal + 1 : 0;
}

/* The location of the pool that a call allocates from; of no type if that is not known. */
static __noinline __u64 pool_location(__u32 tgid, __u64 handle)
{
	struct pool_key key = {.handle = handle, .tgid = tgid};
	const struct pool *pool = bpf_map_lookup_elem(&pools, &key);

	return pool ? (__u64)(__u32)pool->location.id << 32 | pool->location.type : 0;
}

/* What a call allocates from a pool is host memory, which is on no device, or the pool's device has it. */
static __always_inline void locate_in_pool(__u32 tgid, const struct flight *call, enum memory *memory,
					   __u16 *device)
{
	__u64 known = pool_location(tgid, call->arguments[2]);
	struct location location = {.type = known, .id = known >> 32};

	if (in_host(&location)) {
		*memory = memory_pinned_host;
		*device = DEVICE_UNKNOWN;
	} else if (on_device(&location)) {
		*device = device_among(tgid, location.id, *device);
	} else if (*device) {
		*device = DEVICE_UNKNOWN;
	}
}
