/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Numbers of calls on a communicator, by which those of other ranks are recognised. */
#pragma once
#include "comms.h"

static __always_inline __u64 *peer_calls(__u32 tgid, const struct communicator *on, enum kind kind,
					 __s32 peer, bool begins)
{
	static const __u64 none;
	struct peer_key key = {.since_ns = on->since_ns, .tgid = tgid, .peer = peer, .kind = kind};

	if (!begins)
		return bpf_map_lookup_elem(&peers, &key);
	return lookup_or_hold(peers, tgid, &key, &none, MOST_PEERS);
}

/* How many calls of a kind there were on a communicator: the number of the next one. `begins`: it may be the first. */
static __always_inline __u64 *calls_so_far(__u32 tgid, struct communicator *on, enum kind kind, __s32 peer,
					   bool captured, bool begins)
{
	__u32 at = captured ? CAPTURED : kind;

	if (kind == kind_Send || kind == kind_Recv)
		return peer_calls(tgid, on, kind, peer, begins);
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
	if (on->unpaired && (kind == kind_Send || kind == kind_Recv))
		return origin_unknown;
	if (on->origin == origin_library && (on->unsure || captured || kind >= COUNTED_BY_NCCL))
		return origin_unknown;
	return on->origin;
}

/* The numbers on a communicator are right from now on. */
CHECKED_ONCE int be_sure(struct communicator *on)
{
	const __u64 *calls;

	if (!on)
		return 0;
	calls = on->calls;
	on->unsure = 0;
	come_back(on, calls[0] + calls[1] + calls[2] + calls[3] + calls[4]);
	return 0;
}

/* A call begins. In a group that was seen to begin it is the first one on a communicator that is not sure yet. */
static __always_inline void confirm_at_entry(__u32 tgid, struct communicator *on, struct cookie cookie,
					     __u64 comm, bool grouped)
{
	if (!on->unsure || misses_calls(tgid, on->gap))
		return;
	if (read_sequence(on, layout_of(cookie), comm) && grouped)
		be_sure(on);
}

/* A call returned. If the library counts it by now there is no group open that might hold back others. */
static __always_inline void confirm_at_return(__u32 tgid, struct communicator *on, struct cookie cookie,
					      __u64 comm)
{
	const struct layout *layout = layout_of(cookie);
	__u32 at = cookie.kind;

	if (!on->unsure || at >= COUNTED_BY_NCCL || !layout || !layout->sequence ||
	    misses_calls(tgid, on->gap))
		return;
	barrier_var(at);
	at %= NUMBERED;
	if (read_u64(comm + layout->sequence + 8 * at) == on->calls[at])
		be_sure(on);
}
