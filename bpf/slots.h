/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The slots of histograms. Nothing here is of BPF, so that tests/unit/bpf/test_slots.py runs it. */
#pragma once
#include <linux/types.h>

/* The slot of a value: slot 0 holds v <= 2^first, slot i holds 2^(first+i-1) < v <= 2^(first+i), the last one
 * everything above. */
static __always_inline __u32 log2_slot(__u64 v, __u32 first, __u32 slots)
{
	__u32 slot = 0;

	if (v < 2)
		return 0;
	v--;
	for (__u32 width = 32; width; width /= 2) /* unrolled: six compares */
		if (v >> width) {
			v >>= width;
			slot += width;
		}
	slot = slot + 1 > first ? slot + 1 - first : 0;
	return slot < slots ? slot : slots - 1;
}

/* The slot of a time: slot 0 holds t <= 2^first s, slot i holds 2^(first+i-1) s < t <= 2^(first+i) s, the last one
 * everything above. `first` is from -29 on. exporter/durations.py has the same bounds, those of native histograms.
 * Exact for any t: of all bounds only 2^(n-30) s lies among the times of n bits. It is compared with t after both are
 * shifted to the left until t has 64 bits, where the bound is 10^9 << 34. */
static __always_inline __u32 duration_slot(__u64 ns, __s32 first, __u32 slots)
{
	__u32 slot = 1, skipped = 30 + first;
	__u64 rest = ns;

	for (__u32 width = 32; width; width /= 2) /* unrolled: six compares */
		if (rest >> width) {
			rest >>= width;
			slot += width;
		}
	slot += ns << (64 - slot) > 1000000000ull << 34;
	slot = slot > skipped ? slot - skipped : 0;
	return slot < slots ? slot : slots - 1;
}
