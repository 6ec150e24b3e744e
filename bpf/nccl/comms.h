/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Communicators: which ones there are, and from where on their calls are numbered. */
#pragma once
#include "identity.h"
#include "meetings.h"

static __always_inline bool same(const struct identity *a, const struct identity *b)
{
	return a->hash == b->hash && a->rank == b->rank && a->nranks == b->nranks;
}

/* Whether there is no communicator: of one that is known this need not be read again. */
static __always_inline bool lacks_magic(const struct layout *layout, __u64 comm)
{
	return layout && layout->guarded && read_u64(comm) != NCCL_MAGIC;
}

/* Goes on from the library's numbers, which know no calls of a group that is still open. */
static __always_inline bool read_sequence(struct communicator *on, const struct layout *layout, __u64 comm)
{
	return layout && layout->sequence &&
	       !bpf_probe_read_user(on->calls, COUNTED_BY_NCCL * sizeof(__u64),
				    (void *)(comm + layout->sequence));
}

static long drop_peer(void *map, const struct peer_key *at, const void *value, const struct peer_key *of)
{
	struct peer_key key = *at;

	(void)map, (void)value;
	if (key.tgid != of->tgid || key.since_ns != of->since_ns)
		return 0;
	bpf_map_delete_elem(&peers, &key);
	subtract_row(ROWS(of->tgid, peers));
	return 0;
}

/* A communicator ends: what is at its address next is another. */
__noinline int end_communicator(__u32 tgid, __u64 address)
{
	struct comm_key key = {.tgid = tgid, .address = address};
	struct communicator *known = bpf_map_lookup_elem(&communicators, &key);
	struct peer_key of = {.tgid = tgid};

	if (!known)
		return 0;
	of.since_ns = known->since_ns;
	leave(tgid, known);
	bpf_map_delete_elem(&communicators, &key);
	subtract_row(ROWS(tgid, communicators));
	bpf_for_each_map_elem(&peers, drop_peer, &of, 0);
	return 0;
}

struct twin {
	struct comm_key key;
	struct identity who;
	__u64 found;
};

static long find_twin(void *map, const struct comm_key *at, struct communicator *on, struct twin *of)
{
	(void)map;
	if (at->tgid == of->key.tgid && at->address != of->key.address && same(&on->who, &of->who))
		of->found = on->reused = 1;
	return 0;
}

/* Before NCCL 2.24 splits of one color have one hash: numbers of a second one are not those of the first. */
__noinline int recognise(__u32 tgid, __u64 address)
{
	struct twin twin = {.key = {.tgid = tgid, .address = address}};
	struct communicator *on = bpf_map_lookup_elem(&communicators, &twin.key);
	struct lag_key before = {.tgid = tgid};

	if (!on || !on->who.hash)
		return 0;
	twin.who = on->who;
	before.hash = on->who.hash;
	before.rank = on->who.rank;
	before.nranks = on->who.nranks;
	bpf_for_each_map_elem(&communicators, find_twin, &twin, 0);
	on->reused = twin.found || bpf_map_lookup_elem(&lags, &before);
	return 0;
}

/* Begins to know what is at an address, in place of what was there before. */
static __always_inline struct communicator *begin_communicator(const struct comm_key *key,
							       const struct layout *layout,
							       const struct identity *who, bool created)
{
	static const struct communicator none;
	struct communicator *known;
	__u64 *rows;

	end_communicator(key->tgid, key->address);
	rows = ROWS(key->tgid, communicators);
	if (!hold(rows, MOST_COMMUNICATORS, &communicators_lost))
		return NULL;
	known = lookup_or_init(communicators, key, &none);
	if (!known) {
		subtract_row(rows);
		return NULL;
	}
	known->who = *who;
	known->domain = domain_of_task();
	known->since_ns = bpf_ktime_get_ns();
	known->gap = gap_of(key->tgid);
	if (!(known->gap & 1) && (created || bpf_map_lookup_elem(&covered, &key->tgid)))
		known->origin = origin_creation;
	else if (read_sequence(known, layout, key->address)) {
		known->origin = origin_library;
		known->unsure = 1;
	}
	recognise(key->tgid, key->address);
	return known;
}

/* Of a library that keeps no hash: one that was seen to be made, and has the rank and size in memory that it was made
 * with. */
static __always_inline struct communicator *by_rank(struct communicator *known, const struct identity *who)
{
	if (!known || !known->who.hash || known->who.rank != who->rank || known->who.nranks != who->nranks)
		return NULL;
	known->who.device = who->device;
	return known;
}

/* Calls on a communicator were missed, or are: its numbers have to be read from the library again, as those of one that
 * is older than the probes. */
static __always_inline void lose_numbers(struct communicator *on, __u32 gap)
{
	on->gap = gap;
	on->unsure = on->unpaired = 1;
	if (on->origin == origin_creation)
		on->origin = origin_library;
	on->group_ns = 0;
	__builtin_memset(on->waiting, 0, sizeof(on->waiting));
	go_away(on);
}

CHECKED_ONCE int look_for_gap(struct communicator *on, __u32 tgid)
{
	__u32 gap = gap_of(tgid);

	if (on && on->gap != gap)
		lose_numbers(on, gap);
	return 0;
}

static long lose_all(void *map, const struct comm_key *at, struct communicator *on, const __u32 *tgid)
{
	(void)map;
	if (at->tgid == *tgid)
		lose_numbers(on, gap_of(*tgid));
	return 0;
}

static __always_inline struct communicator *found_at(__u32 tgid, struct cookie cookie, __u64 address)
{
	const struct layout *layout = layout_of(cookie);
	struct comm_key key = {.tgid = tgid, .address = address};
	struct communicator *known;
	struct identity who;

	if (!read_identity(layout, address, &who))
		return NULL;
	known = bpf_map_lookup_elem(&communicators, &key);
	if (layout->hashless)
		return by_rank(known, &who);
	if (known && same(&known->who, &who))
		return known;
	if (lacks_magic(layout, address))
		return NULL;
	if (known && !known->who.hash) {
		known->who = who;
		recognise(tgid, address);
		return known;
	}
	return begin_communicator(&key, layout, &who, false);
}

/* The communicator that a call is given; NULL if it is not known. */
static __always_inline struct communicator *communicator_at(__u32 tgid, struct cookie cookie, __u64 address)
{
	struct communicator *on = found_at(tgid, cookie, address);

	look_for_gap(on, tgid);
	return on;
}

/* A call returned a communicator. Where it is still being made (ncclInProgress) it can be read later. */
__noinline int created(__u32 tgid, __u32 index, __u64 address)
{
	const struct layout *layout = bpf_map_lookup_elem(&layouts, &index);
	struct comm_key key = {.tgid = tgid, .address = address};
	struct identity who;

	if (!address || lacks_magic(layout, address))
		return 0;
	read_identity(layout, address, &who);
	begin_communicator(&key, layout, &who, true);
	return 0;
}

/* A call returned a communicator of a library that keeps no hash. In a group some releases store its address later:
 * what is known at the present one stays. `ranks` has the rank, and above it their number. */
__noinline int created_by_id(__u32 tgid, __u64 address, __u64 hash, __u64 ranks, __u32 depth)
{
	struct comm_key key = {.tgid = tgid, .address = address};
	struct identity who = {.hash = hash, .rank = ranks, .nranks = ranks >> 32, .device = -1};

	if (address && hash && !(depth && bpf_map_lookup_elem(&communicators, &key)))
		begin_communicator(&key, NULL, &who, true);
	return 0;
}

/* Who a call ends. */
static __always_inline void read_ended(__u32 tgid, struct cookie cookie, __u64 address, struct identity *who)
{
	const struct layout *layout = layout_of(cookie);
	struct comm_key key = {.tgid = tgid, .address = address};
	const struct communicator *known;

	if (!read_identity(layout, address, who) || !layout->hashless)
		return;
	known = bpf_map_lookup_elem(&communicators, &key);
	__builtin_memset(who, 0, sizeof(*who));
	if (known)
		*who = known->who;
}
