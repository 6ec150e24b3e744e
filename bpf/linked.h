/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Processes with a link of their own for launches, entered by the exporter: while that for all comes and goes, theirs
 * count by the one of theirs. */
#pragma once
#include "probe.h"

MAP(linked, HASH, __u32, __u8, 4096);
MAP(linked_processes, ARRAY, __u32, __u64, 1); /* rows of it: while there are none, nobody is looked up */

static __always_inline bool is_linked(__u32 tgid)
{
	__u32 only = 0;
	const __u64 *processes = bpf_map_lookup_elem(&linked_processes, &only);

	return processes && *processes && bpf_map_lookup_elem(&linked, &tgid);
}
