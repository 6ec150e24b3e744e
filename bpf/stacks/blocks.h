/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The blocks that PyTorch's caching allocator has given out of its segments, by what it reports of each: address and
 * bytes, negative when the block is given back, and what it has given out and holds then, under its lock of the GPU. */
#pragma once
#include "stacks.h"

struct block_key {
	__u32 tgid;
	__u32 zero;
	__u64 address;
};
struct block {
	__u64 bytes;
	__u32 stack; /* the number of the stack that it was given to, 0 if none was taken */
	__u32 device;
};
#define BLOCKS 262144
MAP(blocks, HASH, struct block_key, struct block, BLOCKS);
__u64 block_rows = 0;
const volatile __u64 blocks_most = BLOCKS;

/* Rows of `blocks` of each process. */
MAP(block_shares, HASH, __u32, __u64, 4096);

/* The allocator of a process on one GPU, by PyTorch's number of it; bytes. */
#define MOST_DEVICES 64
struct allocator_key {
	__u32 tgid;
	__u32 device;
};
struct allocator {
	__u64 allocated; /* given out, as it reports */
	__u64 reserved;	 /* in its segments, as it reports */
	__s64 tracked;	 /* in rows of `blocks`; below 0 by those of the program before an exec */
};
MAP(allocators, HASH, struct allocator_key, struct allocator, 4096);
ENDED()

#define DEVICE_CUDA 1 /* c10::DeviceType */
/* Allowance and room in the ring buffer that a block leaves to others; a large one leaves less, as it matters more. */
#define LEAST_FOR_BLOCKS 96
#define LEAST_FOR_LARGE_BLOCKS 32
#define QUARTERS_FOR_BLOCKS 2
#define QUARTERS_FOR_LARGE_BLOCKS 3
#define LARGE_BLOCK (1 << 20)

static __always_inline void remove_block(const struct block_key *key, struct allocator *allocator,
					 __u64 *held)
{
	const struct block *found = bpf_map_lookup_elem(&blocks, key);
	__u64 bytes = found ? found->bytes : 0;

	if (!found || bpf_map_delete_elem(&blocks, key))
		return;
	__sync_fetch_and_add(&allocator->tracked, -bytes);
	add(&block_rows, -1);
	subtract_row(held);
	if (blocks_full_tick)
		blocks_full_tick = 0;
}

/* Without a row the block's bytes are `allocated` and not `tracked`. */
static __always_inline void put_block(const struct block_key *key, const struct block *row,
				      struct allocator *allocator, __u64 *held)
{
	remove_block(key, allocator, held); /* given back unseen */
	if (!held || !has_share(*held, block_rows, blocks_most) || insert(blocks, key, row, BPF_NOEXIST)) {
		add(&blocks_lost, 1);
		return;
	}
	__sync_fetch_and_add(&allocator->tracked, row->bytes);
	add(held, 1);
	add(&block_rows, 1);
}

static long drop_block(void *map, const struct block_key *at, const void *value, void *unused)
{
	struct block_key key = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(key.tgid) && !bpf_map_delete_elem(&blocks, &key))
		add(&block_rows, -1);
	return 0;
}

static long drop_share(void *map, const __u32 *at, const void *value, void *unused)
{
	__u32 tgid = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(tgid))
		bpf_map_delete_elem(&block_shares, &tgid);
	return 0;
}
DROP(allocators, struct allocator_key)
