/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Processes with links of their own for a group of functions, entered by the exporter: while the links for all come and
 * go, theirs count by the ones of theirs. A key is the process and, in its upper half, the group. */
#pragma once
#include "probe.h"

#define MOST_GROUPS 4
/* Of a row, which also distinguishes this time with own links from earlier ones: */
#define LINKED_MARK (1u << 31) /* so that it is no value of `returning` */
#define LINKED_LEAVING                                                                                       \
	(1u << 30) /* calls count by the links for all again; those begun before return by the own ones */
#define LINKED_BLIND (1u << 29) /* no return probes */

MAP(linked, HASH, __u64, __u32, 4096);
/* Rows of a group: while there are none, no process is looked up. */
MAP(linked_processes, ARRAY, __u32, __u64, MOST_GROUPS);

/* The row of a process, 0 without one. */
static __always_inline __u32 linked_row(__u32 group, __u32 tgid)
{
	const __u64 *processes = bpf_map_lookup_elem(&linked_processes, &group);
	__u64 key = (__u64)group << 32 | tgid;
	const __u32 *row;

	if (!processes || !*processes)
		return 0;
	row = bpf_map_lookup_elem(&linked, &key);
	return row ? *row : 0;
}

static __always_inline bool is_linked(__u32 group, __u32 tgid)
{
	__u32 row = linked_row(group, tgid);

	return row && !(row & LINKED_LEAVING);
}
