/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* When bytes came to the sockets of servers, until these read them: a read has several requests where the server is busy. */
#pragma once
#include "http.h"

#define ARRIVALS 32 /* that are kept of a socket; a power of two */

struct arrivals {
	__u64 first; /* since the last read; 0: none */
	__u64 times[ARRIVALS];
	__u32 ends[ARRIVALS]; /* TCP's sequence numbers of the bytes after them */
	__u32 count;	      /* of those of TCP, as many as there were */
	__u32 unused;
};

static const struct arrivals no_arrivals;
/* By the socket's address. They take memory only as they are used, and go with the connection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_CONNECTIONS);
	__type(key, __u64);
	__type(value, struct arrivals);
} arrivals SEC(".maps");
__u64 arrivals_lost = 0, arrivals_full_tick = 0;

/* Keeps that bytes came to a socket just now, those of TCP up to this sequence number. The kernel reports one segment of a
 * connection after the other. */
static __always_inline void note_arrival(__u64 key, bool of_tcp, __u32 end)
{
	struct arrivals *arrived = lookup_or_init(arrivals, &key, &no_arrivals);
	__u64 now = bpf_ktime_get_ns();
	__u32 at;

	if (!arrived)
		return;
	if (!arrived->first)
		arrived->first = now;
	if (!of_tcp)
		return;
	at = arrived->count & (ARRIVALS - 1);
	arrived->ends[at] = end;
	arrived->times[at] = now;
	arrived->count++;
}

/* When this byte of a TCP connection came; 0 where that is not kept any more. */
CHECKED_ONCE __u64 arrival_of(__u64 key, __u32 sequence)
{
	struct arrivals *arrived = bpf_map_lookup_elem(&arrivals, &key);
	__u32 count = arrived ? arrived->count : 0;

	for (__u32 i = 1; i <= ARRIVALS && i <= count; i++) {
		__u32 at = (count - i) & (ARRIVALS - 1), before = (count - i - 1) & (ARRIVALS - 1);

		if (i < count && i < ARRIVALS && (__s32)(arrived->ends[before] - sequence) > 0)
			continue;
		/* The oldest one may have come after the byte, if others before it are not kept. */
		if ((__s32)(arrived->ends[at] - sequence) <= 0 || (i == ARRIVALS && i < count))
			return 0;
		return arrived->times[at];
	}
	return 0;
}

/* When the request came of which this byte was just read; 0 where that is not known. */
static __always_inline __u64 began(struct walk *walk)
{
	__u64 time = walk->sequence ? arrival_of(walk->key, walk->sequence + walk->at - 1) : 0;

	if (!time)
		time = walk->arrived;
	walk->arrived = 0; /* what follows in the same read came later */
	return time <= walk->now ? time : 0;
}
