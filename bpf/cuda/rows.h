/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Rows of the tables that are shared out: each process has a share of a table, so that one with very many devices, as a
 * library of its own may claim, leaves room for others. */
#pragma once
#include "cuda.h"

__u64 table_rows[TABLES]; /* of all processes */

static __always_inline void *new_row_(void *map, const void *key, const void *zero, __u32 tgid,
				      enum table table, __u64 most, __u64 *lost, __u64 *full_tick)
{
	static const struct process none;
	struct process *process = lookup_or_init(processes, &tgid, &none);
	void *row = NULL;
	long error;

	if (process && has_share(process->rows[table], table_rows[table], most)) {
		error = insert_(map, key, zero, BPF_NOEXIST, full_tick);
		if (!error) {
			add(&process->rows[table], 1);
			add(&table_rows[table], 1);
		}
		if (error != -E2BIG) /* another CPU may have been first */
			row = bpf_map_lookup_elem(map, key);
	}
	if (!row)
		add(lost, 1);
	return row;
}

/* Entries of a map, as declared. */
#define MOST(map) (sizeof(*(map).max_entries) / sizeof(int))

/* Makes the row of a key that has none, of one of the tables above; NULL (and counted) where there is no room. */
#define new_row(map, key, zero)                                                                              \
	((typeof(map.value))new_row_(&map, key, zero, (key)->tgid, table_##map, MOST(map), &map##_lost,      \
				     &map##_full_tick))

/* The row of a key, made from *zero if there was none. */
#define row_of(map, key, zero)                                                                               \
	({                                                                                                   \
		typeof(map.value) row_ = bpf_map_lookup_elem(&map, key);                                     \
		row_ ? row_ : new_row(map, key, zero);                                                       \
	})

/* A row of the process is gone. */
static __always_inline void return_row(__u32 tgid, enum table table)
{
	struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	if (!process || !process->rows[table])
		return;
	add(&process->rows[table], -1);
	add(&table_rows[table], -1);
}

/* The exporter has taken all rows of a process. */
static __always_inline void return_shares(const struct process *process)
{
	for (int table = 0; table < TABLES; table++)
		add(&table_rows[table], -process->rows[table]);
}

/* What the process holds is not known any more. */
static __always_inline void lose_sight(struct process *process)
{
	add(&process->missed, 1);
	add(&memory_missed, 1);
}

/* The same in the middle of a call: what it did to memory, or which context takes memory along, could not be kept. */
static __always_inline void lose_memory(__u32 tgid)
{
	struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	bpf_map_delete_elem(&covered, &tgid);
	if (process)
		lose_sight(process);
}
