/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The slots of histograms. Nothing here is of BPF, so that tests/unit/bpf/test_slots.py runs it. */
#pragma once
#include <linux/types.h>

/* The number of bits of v but the first one: 0 for 0 and 1. Without branches, of which the verifier would follow all
 * combinations in each program. */
static __always_inline __u32 log2_floor(__u64 v)
{
	__u32 bits = 0;

	for (__u32 width = 32; width; width /= 2) { /* unrolled */
		__u64 above = v >> width;
		__u32 step;

		above |= -above;		/* its highest bit is set if it is not 0 */
		asm volatile("" : "+r"(above)); /* else the compiler makes it a branch */
		step = (above >> 63) * width;
		v >>= step;
		bits += step;
	}
	return bits;
}

/* The slot of a value: slot 0 holds v <= 2^first, slot i holds 2^(first+i-1) < v <= 2^(first+i), the last one
 * everything above. */
static __always_inline __u32 log2_slot(__u64 v, __u32 first, __u32 slots)
{
	__u32 slot;

	if (v < 2)
		return 0;
	slot = log2_floor(v - 1) + 1;
	slot = slot > first ? slot - first : 0;
	return slot < slots ? slot : slots - 1;
}

/* The slot of a time: slot 0 holds t <= 2^first s, slot i holds 2^(first+i-1) s < t <= 2^(first+i) s, the last one
 * everything above. `first` is from -29 on. exporter/durations.py has the same bounds, those of native histograms.
 * Exact for any t: of all bounds only 2^(n-30) s lies among the times of n bits. It is compared with t after both are
 * shifted to the left until t has 64 bits, where the bound is 10^9 << 34. */
static __always_inline __u32 duration_slot(__u64 ns, __s32 first, __u32 slots)
{
	__u32 slot = log2_floor(ns) + 1, skipped = 30 + first;

	slot += ns << (64 - slot) > 1000000000ull << 34;
	slot = slot > skipped ? slot - skipped : 0;
	return slot < slots ? slot : slots - 1;
}
