/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What every probe needs. No kernel types here: an object that includes only this loads where the kernel has no BTF.
 *
 * Uprobe programs may be preempted, so per-CPU values too are changed with add(). Whatever a map had to refuse is
 * counted in a global named <map>_lost, which the exporter reads. */
#pragma once
#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include "registers.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

/* A map that counts the keys it had no room for: MAP(calls, PERCPU_HASH, struct call, struct calls, 10240).
 * In per-CPU values every field is 64 bits wide: the exporter adds the copies up, and takes the greatest of fields
 * whose name starts with last_. */
#define MAP(name, kind, K, V, entries)                                                                       \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_##kind);                                                           \
		__uint(max_entries, entries);                                                                \
		__type(key, K);                                                                              \
		__type(value, V);                                                                            \
	} name SEC(".maps");                                                                                 \
	__u64 name##_lost = 0

/* A ring buffer of T that counts the records it had no room for. The kernel wants no value size for a ring buffer:
 * the loader takes the type from here and clears the size. */
#define EVENTS(name, T, bytes)                                                                               \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_RINGBUF);                                                          \
		__uint(max_entries, bytes);                                                                  \
		__type(value, T);                                                                            \
	} name SEC(".maps");                                                                                 \
	__u64 name##_lost = 0

static __always_inline void add(__u64 *to, __u64 n)
{
	__sync_fetch_and_add(to, n);
}

static __always_inline void *lookup_or_init_(void *map, const void *key, const void *zero, __u64 *lost)
{
	void *value = bpf_map_lookup_elem(map, key);

	if (value)
		return value;
	bpf_map_update_elem(map, key, zero, BPF_NOEXIST); /* another CPU may have been first: look again */
	value = bpf_map_lookup_elem(map, key);
	if (!value)
		add(lost, 1);
	return value;
}

/* The value of a key in a MAP(), made from *zero if there was none; NULL (and counted) if the map is full. */
#define lookup_or_init(map, key, zero) ((typeof(map.value))lookup_or_init_(&map, key, zero, &map##_lost))

static __always_inline void *reserve_(void *ring, __u64 size, __u64 *lost)
{
	void *record = bpf_ringbuf_reserve(ring, size, 0);

	if (!record)
		add(lost, 1);
	return record;
}

/* Room for one record in an EVENTS() buffer, to be filled and given to bpf_ringbuf_submit; NULL (and counted) if full. */
#define reserve(ring) ((typeof(ring.value))reserve_(&ring, sizeof(*ring.value), &ring##_lost))

/* Whether one more event may be told in this second; what may not is counted in *over. One limit an object. CPUs that
 * meet at the turn of a second may both start it: a few events more. */
static __always_inline bool within_limit(__u64 now, __u64 per_second, __u64 *over)
{
	static __u64 second, sent;

	if (second != now / 1000000000) {
		second = now / 1000000000;
		sent = 0;
	}
	if (__sync_fetch_and_add(&sent, 1) < per_second)
		return true;
	add(over, 1);
	return false;
}

/* The histogram slot of a value: slot 0 holds v <= 2^first, slot i holds 2^(first+i-1) < v <= 2^(first+i), the last
 * one everything above. exporter.bpf.slot_bounds gives the same bounds. */
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
