/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls in flight: what an entry leaves for its return, one row a thread. */
#pragma once
#include "thread.h"

/* FLIGHTS(in_flight, struct call, 8192) is such a table, after ENDED(). T has `sp`, the stack pointer with which the call
 * began. It is 0 in the row of a thread that makes no call: while less than half of the table is used a thread keeps its
 * row, which saves finding room at each call and giving it back. */
#define FLIGHTS(map, T, entries)                                                                             \
	MAP(map, HASH, struct thread, T, entries);                                                           \
	MAP(map##_shares, HASH, __u32, __u64, 4096); /* rows of each process */                              \
	__u64 map##_rows = 0;			     /* of all */                                            \
	const volatile __u64 map##_most = entries;                                                           \
	__attribute__((unused)) static long drop_##map(void *unused, const struct thread *at,                \
						       const void *value, void *context)                     \
	{                                                                                                    \
		struct thread thread = *at;                                                                  \
                                                                                                             \
		(void)unused, (void)value, (void)context;                                                    \
		if (has_no_threads(thread.tgid))                                                             \
			remove_flight(map, &thread);                                                         \
		return 0;                                                                                    \
	}                                                                                                    \
	__attribute__((unused)) static long drop_##map##_shares(void *unused, const __u32 *at,               \
								const void *value, void *context)            \
	{                                                                                                    \
		__u32 tgid = *at;                                                                            \
                                                                                                             \
		(void)unused, (void)value, (void)context;                                                    \
		if (has_ended(tgid))                                                                         \
			bpf_map_delete_elem(&map##_shares, &tgid);                                           \
		return 0;                                                                                    \
	}

/* The call that a thread makes, NULL if it makes none. */
#define flight_of(map, thread)                                                                               \
	({                                                                                                   \
		typeof(map.value) row_ = bpf_map_lookup_elem(&map, thread);                                  \
		row_ && row_->sp ? row_ : NULL;                                                              \
	})

static __always_inline bool add_flight_(void *map, const struct thread *thread, const void *call, __u64 *held,
					__u64 *rows, __u64 most, __u64 *full_tick)
{
	if (!held || !has_share(*held, *rows, most) || insert_(map, thread, call, BPF_NOEXIST, full_tick))
		return false;
	add(held, 1);
	add(rows, 1);
	return true;
}

/* Remembers a call until end_flight(): false (and counted) where the table is full, or the process has its share. */
#define put_flight(map, thread, call)                                                                        \
	({                                                                                                   \
		static const __u64 none_;                                                                    \
		typeof(map.value) row_ = bpf_map_lookup_elem(&map, thread);                                  \
		bool put_ = true;                                                                            \
		if (row_)                                                                                    \
			*row_ = *(call);                                                                     \
		else                                                                                         \
			put_ = add_flight_(&map, thread, call,                                               \
					   lookup_or_init(map##_shares, &(thread)->tgid, &none_),            \
					   &map##_rows, map##_most, &map##_full_tick);                       \
		if (!put_)                                                                                   \
			add(&map##_lost, 1);                                                                 \
		put_;                                                                                        \
	})

static __always_inline void remove_flight_(void *map, const struct thread *thread, __u64 *held, __u64 *rows,
					   __u64 *full_tick)
{
	if (bpf_map_delete_elem(map, thread))
		return;
	add(rows, -1);
	subtract_row(held);
	if (*full_tick)
		*full_tick = 0;
}

/* Gives a thread's row back. */
#define remove_flight(map, thread)                                                                           \
	remove_flight_(&map, thread, bpf_map_lookup_elem(&map##_shares, &(thread)->tgid), &map##_rows,       \
		       &map##_full_tick)

/* The thread's call is over: `row` is what flight_of() gave. */
#define end_flight(map, thread, row)                                                                         \
	do {                                                                                                 \
		if (map##_rows < map##_most / 2)                                                             \
			(row)->sp = 0;                                                                       \
		else                                                                                         \
			remove_flight(map, thread);                                                          \
	} while (0)

/* For `forget`: the rows of processes that have ended. */
#define drop_flights(map)                                                                                    \
	do {                                                                                                 \
		drop_ended(map);                                                                             \
		drop_ended(map##_shares);                                                                    \
	} while (0)

/* The thread is ending. */
#define end_thread(map, thread)                                                                              \
	do {                                                                                                 \
		if (bpf_map_lookup_elem(&map, thread))                                                       \
			remove_flight(map, thread);                                                          \
	} while (0)
