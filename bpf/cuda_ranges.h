/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which memory an address inside an allocation belongs to. A range is kept as the fewest aligned powers of
 * two that make it up (at most two of each size), each a prefix in a longest-prefix-match map. */
#pragma once
#include "cuda.h"

#define ADDRESS_BITS 48
#define PREFIX_BITS 96 /* tgid and address */

struct prefix {
	__u32 length;
	__u32 tgid;
	__u64 address; /* big-endian: the map compares from the first byte on */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, enum memory);
} ranges SEC(".maps");
__u64 ranges_lost = 0;

static __always_inline void put_block(__u32 tgid, __u64 address, __u32 log2, enum memory memory, bool remove)
{
	struct prefix key = {PREFIX_BITS - log2, tgid, __builtin_bswap64(address)};

	if (remove)
		bpf_map_delete_elem(&ranges, &key);
	else if (bpf_map_update_elem(&ranges, &key, &memory, BPF_ANY))
		add(&ranges_lost, 1);
}

/* Not static: so the verifier looks at it once, not at every call. */
__noinline int put_range(__u32 tgid, __u64 at, __u64 bytes, __u32 memory, bool remove)
{
	__u64 end = at + bytes;
	__u32 log2;

	if (end < at)
		return 0;
	for (log2 = 0; log2 < ADDRESS_BITS; log2++) {
		__u64 block = 1ull << log2;

		if (at + block > end)
			break;
		if (at & block) {
			put_block(tgid, at, log2, memory, remove);
			at += block;
		}
	}
	for (log2 = ADDRESS_BITS; log2-- > 0;) {
		__u64 block = 1ull << log2;

		if (at + block <= end) {
			put_block(tgid, at, log2, memory, remove);
			at += block;
		}
	}
	return 0;
}

/* The driver only: every allocation is made there. Pools are left out, for they are made to be allocated from often.
 * Allocations start at multiples of 256 bytes (CUDA C++ Programming Guide, device memory accesses), so rounding their
 * end up to one saves prefixes; registered memory is exact. */
static __always_inline void put_live(const struct live_key *key, const struct live *live, bool remove)
{
	__u64 bytes = live->memory == memory_pinned_host ? live->bytes : (live->bytes + 255) & ~255ull;

	if (key->layer == layer_driver && key->thing != thing_handle && live->memory != memory_pool)
		put_range(key->tgid, key->address, bytes, live->memory, remove);
}

static __always_inline enum memory *range_of(__u32 tgid, __u64 address)
{
	struct prefix key = {PREFIX_BITS, tgid, __builtin_bswap64(address)};

	return bpf_map_lookup_elem(&ranges, &key);
}
