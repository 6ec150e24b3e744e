// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* What a small probe does, for measuring what a hit costs here and whether return probes are safe. */
#include "returns.bpf.h"

enum hit { ENTRY, RETURN, KINDS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KINDS);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

static __always_inline int count(__u32 kind)
{
	__u64 *n = bpf_map_lookup_elem(&hits, &kind);

	if (n)
		add(n, 1);
	return 0;
}

UPROBE(on_entry)
{
	return count(ENTRY);
}

AT_RETURN(on_return)
{
	return count(RETURN);
}
