/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Tables of which each process has a share (has_share() of probe.h), so that one with any number of rows, as a library of
 * its own may claim, leaves room for others. Before this is included: `enum table` with a table_<map> for each SHARED()
 * and TABLES behind these, and ENDED().
 *
 * Only a new row and a removed one cost more than in a MAP(). The exporter takes the rows of processes that have ended,
 * and runs `forget`, which subtracts them by drop_ended(shares), afterwards. */
#pragma once
#include "probe.h"

struct shares {
	__u64 rows[TABLES]; /* of a process */
};
MAP(shares, HASH, __u32, struct shares, 4096);
__u64 table_rows[TABLES]; /* of all processes that have a row above */

/* The exporter sets <map>_most where it sizes the map. */
#define SHARED(map, K, V, entries)                                                                           \
	MAP(map, HASH, K, V, entries);                                                                       \
	const volatile __u64 map##_most = entries

static __always_inline long put_shared_(void *map, const void *key, const void *value, __u32 tgid,
					enum table table, __u64 most, __u64 *lost, __u64 *full_tick)
{
	static const struct shares none;
	struct shares *held = lookup_or_init(shares, &tgid, &none);
	long error = -E2BIG;

	if (held && has_share(held->rows[table], table_rows[table], most))
		error = insert_(map, key, value, BPF_NOEXIST, full_tick);
	if (!error) {
		add(&held->rows[table], 1);
		add(&table_rows[table], 1);
	} else if (error != -EEXIST) {
		add(lost, 1);
	}
	return error;
}

/* Makes a process's row of a key: 0; -EEXIST if there is one; else an error, and counted, where there is no room or the
 * process has its share. */
#define put_shared(map, tgid, key, value)                                                                    \
	put_shared_(&map, key, value, tgid, table_##map, map##_most, &map##_lost, &map##_full_tick)

static __always_inline void *new_shared_(void *map, const void *key, long error)
{
	return error && error != -EEXIST ? NULL : bpf_map_lookup_elem(map, key);
}

/* As lookup_or_init(): the row of a key, made from *zero if there was none; NULL (and counted) where it gets none. */
#define shared_row(map, tgid, key, zero)                                                                     \
	({                                                                                                   \
		typeof(map.value) row_ = bpf_map_lookup_elem(&map, key);                                     \
		row_ ? row_ : new_shared_(&map, key, put_shared(map, tgid, key, zero));                      \
	})

/* Takes one from the rows of a process, unless that is of a later program of it, which had none of them. */
static __always_inline void return_share(__u32 tgid, enum table table)
{
	struct shares *held = bpf_map_lookup_elem(&shares, &tgid);

	if (!held || !held->rows[table])
		return;
	add(&held->rows[table], -1);
	add(&table_rows[table], -1);
}

static __always_inline bool remove_shared_(void *map, const void *key, __u32 tgid, enum table table,
					   __u64 *full_tick)
{
	if (bpf_map_delete_elem(map, key))
		return false;
	return_share(tgid, table);
	if (*full_tick)
		*full_tick = 0;
	return true;
}

/* Removes a process's row. False if another thread was first. */
#define remove_shared(map, tgid, key) remove_shared_(&map, key, tgid, table_##map, &map##_full_tick)

__attribute__((unused)) static long drop_shares(void *map, const __u32 *at, const struct shares *held,
						void *context)
{
	__u32 tgid = *at;

	(void)map, (void)context;
	if (!has_ended(tgid))
		return 0;
	for (int table = 0; table < TABLES; table++)
		add(&table_rows[table], -held->rows[table]);
	bpf_map_delete_elem(&shares, &tgid);
	return 0;
}
