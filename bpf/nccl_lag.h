/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which of a node's ranks are late: when each calls a collective, against the first of them. */
#pragma once
#include "nccl_comms.h"

#define MINUTE 60000000000ull

static __always_inline void count_lag(__u32 tgid, const struct communicator *on, __u64 ns)
{
	static const struct lag none;
	struct lag_key key = {
	    .hash = on->who.hash, .tgid = tgid, .rank = on->who.rank, .nranks = on->who.nranks};
	struct lag *lag = lookup_or_init(lags, &key, &none);
	__u32 slot = (log2_slot((ns + 999) / 1000, 6, 64) + 1) / 2;

	if (!lag)
		return;
	if (slot >= LAG_SLOTS)
		slot = LAG_SLOTS - 1;
	add(&lag->sum_ns, ns);
	add(&lag->slots[slot], 1);
}

/* The first one to call is zero behind itself. A first call from long before this communicator was met was one on
 * another with the same hash. */
static __always_inline void note_arrival(__u32 tgid, const struct communicator *on, enum kind kind,
					 __u64 sequence, __u64 now)
{
	struct arrival_key key = {
	    .hash = on->who.hash, .sequence = sequence, .nranks = on->who.nranks, .kind = kind};
	__u64 *first = bpf_map_lookup_elem(&arrivals, &key);

	if (!first && bpf_map_update_elem(&arrivals, &key, &now, BPF_NOEXIST))
		first = bpf_map_lookup_elem(&arrivals, &key); /* another CPU was faster */
	if (first && *first + MINUTE < on->since_ns)
		*first = now;
	count_lag(tgid, on, first && *first < now ? now - *first : 0);
}
