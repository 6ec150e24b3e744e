/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Sums of lengths in an array of a process: of plain lengths, of iovecs, of descriptors. */
#pragma once
#include "probe.h"

#define LENGTH_STEPS 16384
#define WORDS_PER_STEP 16
#define MOST_LENGTHS 65536

struct lengths {
	__u64 at, end;
	__u64 sum;
	__u32 width; /* words of an element: 1, 2 or 4 */
	__u32 index; /* of its length */
	bool failed;
	__u8 zero[7];
};

static long add_lengths(__u32 step, struct lengths *walk)
{
	__u64 words[WORDS_PER_STEP] = {};
	__u64 left = walk->end - walk->at;

	(void)step;
	if (left > sizeof(words))
		left = sizeof(words);
	if (bpf_probe_read_user(words, left, (void *)walk->at)) {
		walk->failed = true;
		return 1;
	}
	for (__u32 i = 0; i < WORDS_PER_STEP; i++) {
		if ((i & (walk->width - 1)) != walk->index)
			continue;
		if (words[i] > MOST_LENGTH)
			walk->failed = true;
		walk->sum += words[i];
	}
	walk->at += left;
	return walk->failed || walk->at >= walk->end;
}

/* The sum of `count` lengths; -1 if they cannot be read, or are more than MOST_LENGTHS. */
static __noinline __s64 sum_lengths(__u64 at, __u64 count, __u32 width, __u32 index)
{
	struct lengths walk = {.at = at, .width = width, .index = index};

	if (count > MOST_LENGTHS)
		return -1;
	if (!count)
		return 0;
	walk.end = at + count * width * 8;
	bpf_loop(LENGTH_STEPS, add_lengths, &walk, 0);
	return walk.failed || walk.at < walk.end ? -1 : (__s64)walk.sum;
}
