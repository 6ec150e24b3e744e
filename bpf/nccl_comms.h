/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Communicators: who one is, read from the library's own memory, and how its calls are numbered. */
#pragma once
#include "nccl_calls.h"

static __always_inline const struct layout *layout_of(struct cookie cookie)
{
	__u32 index = cookie.layout;

	return bpf_map_lookup_elem(&layouts, &index);
}

/* False where the library's layout is not known, or what is there can be no communicator that is ready. */
static __always_inline bool read_identity(const struct layout *layout, __u64 comm, struct identity *who)
{
	__u64 size = offsetof(struct identity, zero);

	__builtin_memset(who, 0, sizeof(*who));
	if (!comm || !layout || !layout->identity)
		return false;
	if (!bpf_probe_read_user(who, size, (void *)(comm + layout->identity)) && who->hash &&
	    who->rank >= 0 && who->rank < who->nranks && who->nranks < MOST_RANKS)
		return true;
	__builtin_memset(who, 0, sizeof(*who));
	return false;
}

static __always_inline bool same(const struct identity *a, const struct identity *b)
{
	return a->hash == b->hash && a->rank == b->rank && a->nranks == b->nranks;
}

/* Whether there is no communicator: of one that is known this need not be asked again. */
static __always_inline bool impostor(const struct layout *layout, __u64 comm)
{
	return layout && layout->guarded && read_u64(comm) != NCCL_MAGIC;
}

/* Goes on from the library's numbers, which know no calls of a group that is still open. */
static __always_inline bool seed(struct communicator *on, const struct layout *layout, __u64 comm)
{
	return layout && layout->sequence &&
	       !bpf_probe_read_user(on->calls, COUNTED_BY_NCCL * sizeof(__u64),
				    (void *)(comm + layout->sequence));
}

/* Begins to know what is at an address, in place of what was there before. */
static __always_inline struct communicator *meet(const struct comm_key *key, const struct layout *layout,
						 const struct identity *who, bool created)
{
	static const struct communicator none;
	struct communicator *known;

	bpf_map_delete_elem(&communicators, key);
	known = lookup_or_init(communicators, key, &none);
	if (!known)
		return NULL;
	known->who = *who;
	known->since_ns = bpf_ktime_get_ns();
	if (created || bpf_map_lookup_elem(&covered, &key->tgid))
		known->origin = origin_creation;
	else if (seed(known, layout, key->address)) {
		known->origin = origin_library;
		known->unsure = 1;
	}
	return known;
}

/* The communicator that a call is given; NULL if it cannot be told. */
static __always_inline struct communicator *communicator_at(__u32 tgid, struct cookie cookie, __u64 address)
{
	const struct layout *layout = layout_of(cookie);
	struct comm_key key = {.tgid = tgid, .address = address};
	struct communicator *known;
	struct identity who;

	if (!read_identity(layout, address, &who))
		return NULL;
	known = bpf_map_lookup_elem(&communicators, &key);
	if (known && same(&known->who, &who))
		return known;
	if (impostor(layout, address))
		return NULL;
	if (known && !known->who.hash) {
		known->who = who;
		return known;
	}
	return meet(&key, layout, &who, false);
}

/* A call returned a communicator. Where it is still being made (ncclInProgress) it can be read later. */
static __always_inline void created(__u32 tgid, struct cookie cookie, __u64 address)
{
	const struct layout *layout = layout_of(cookie);
	struct comm_key key = {.tgid = tgid, .address = address};
	struct identity who;

	if (!address || impostor(layout, address))
		return;
	read_identity(layout, address, &who);
	meet(&key, layout, &who, true);
}

static __always_inline __u64 *peer_calls(__u32 tgid, const struct communicator *on, enum kind kind,
					 __s32 peer)
{
	static const __u64 none;
	struct peer_key key = {.since_ns = on->since_ns, .tgid = tgid, .peer = peer, .kind = kind};

	return lookup_or_init(peers, &key, &none);
}

/* How many calls of a kind there were on a communicator: the number of the next one. */
static __always_inline __u64 *calls_so_far(__u32 tgid, struct communicator *on, enum kind kind, __s32 peer,
					   bool captured)
{
	__u32 at = captured ? CAPTURED : kind;

	if (kind == kind_Send || kind == kind_Recv)
		return peer_calls(tgid, on, kind, peer);
	if (kind >= COLLECTIVES)
		return NULL;
	barrier_var(at); /* else the compiler, which knows the bound, leaves it out for the verifier */
	return &on->calls[at % NUMBERED];
}

/* Of no elements: the library returns at once, on all ranks alike, and counts nothing. */
static __always_inline bool discarded(struct cookie cookie, __u64 count)
{
	return cookie.kind < COUNTED_BY_NCCL && cookie.effect == effect_collective && !count;
}

/* From where on such calls are numbered. */
static __always_inline enum origin origin_of(const struct communicator *on, enum kind kind, bool captured)
{
	if (on->origin == origin_library && (on->unsure || captured || kind >= COUNTED_BY_NCCL))
		return origin_unknown;
	return on->origin;
}

/* A call begins. In a group whose beginning was seen it is the first one on a communicator that is not sure yet. */
static __always_inline void settle(struct communicator *on, struct cookie cookie, __u64 comm, bool grouped)
{
	if (!on->unsure)
		return;
	on->unsure = !seed(on, layout_of(cookie), comm) || !grouped;
}

/* A call returned. If the library counts it by now there is no group open that might hold back others. */
static __always_inline void confirm(struct communicator *on, struct cookie cookie, __u64 comm)
{
	const struct layout *layout = layout_of(cookie);
	__u32 at = cookie.kind;

	if (!on->unsure || at >= COUNTED_BY_NCCL || !layout)
		return;
	barrier_var(at);
	at %= NUMBERED;
	if (read_u64(comm + layout->sequence + 8 * at) == on->calls[at])
		on->unsure = 0;
}
