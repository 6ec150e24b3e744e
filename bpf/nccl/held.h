/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How many rows of the maps a process may hold. */
#pragma once
#include "gaps.h"

static __always_inline struct held *held_by(__u32 tgid)
{
	static const struct held none;

	return lookup_or_init(held, &tgid, &none);
}

/* Whether a process may hold one row more of a map that has room for `most`. */
static __always_inline bool hold(__u64 *rows, __u64 most, __u64 *lost)
{
	if (rows && *rows >= most / SHARE) {
		add(lost, 1);
		return false;
	}
	if (rows)
		add(rows, 1);
	return true;
}

#define ROWS(tgid, map)                                                                                      \
	({                                                                                                   \
		struct held *held_ = held_by(tgid);                                                          \
		held_ ? &held_->map : NULL;                                                                  \
	})

static __always_inline void *hold_row_(void *map, const void *key, const void *zero, __u64 *rows, __u64 most,
				       __u64 *lost, __u64 *full_tick)
{
	void *row;

	if (!hold(rows, most, lost))
		return NULL;
	if (!insert_(map, key, zero, BPF_NOEXIST, full_tick))
		return bpf_map_lookup_elem(map, key);
	subtract_row(rows); /* another thread was first, or there is no room */
	row = bpf_map_lookup_elem(map, key);
	if (!row)
		add(lost, 1);
	return row;
}

/* As lookup_or_init, of a row that the process holds from then on; NULL (and counted) too where it has its share. */
#define lookup_or_hold(map, tgid, key, zero, most)                                                           \
	({                                                                                                   \
		typeof(map.value) row_ = bpf_map_lookup_elem(&map, key);                                     \
		if (!row_)                                                                                   \
			row_ = hold_row_(&map, key, zero, ROWS(tgid, map), most, &map##_lost,                \
					 &map##_full_tick);                                                  \
		row_;                                                                                        \
	})
