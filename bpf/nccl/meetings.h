/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Where the ranks of a communicator that are on this node meet. */
#pragma once
#include "calls.h"

#define JOB_LEVEL 3
#define SPREAD 0x9e3779b97f4a7c15ull

/* Who the current process is compared with: those of its user in one job or pod, which is what systemd, Slurm and
 * Kubernetes have at this depth of the hierarchy of cgroups (or above it, where the process itself is not that deep). */
static __always_inline __u64 domain_of_task(void)
{
	__u64 user = (__u32)bpf_get_current_uid_gid(), job;

	if (across_containers)
		return 0;
	job = bpf_get_current_ancestor_cgroup_id(JOB_LEVEL);
	if (!job)
		job = bpf_get_current_cgroup_id();
	return (job + 1) * SPREAD ^ user;
}

static __always_inline struct meeting_key meeting_key_of(const struct communicator *on, __u32 kind)
{
	return (struct meeting_key){
	    .hash = on->who.hash, .domain = on->domain, .nranks = on->who.nranks, .kind = kind};
}

/* The row where the ranks of a communicator meet, held from the first call on; NULL (and counted) without one. */
static __always_inline struct meeting *meeting_of(__u32 tgid, struct communicator *on, enum kind kind,
						  __u64 number)
{
	static const struct meeting none;
	__u32 at = kind < COUNTED_BY_NCCL ? 0 : kind;
	struct meeting_key key = meeting_key_of(on, at);
	struct meeting *meeting = bpf_map_lookup_elem(&meetings, &key);
	__u64 *rows;

	if (meeting && on->met & 1u << at)
		return meeting;
	rows = ROWS(tgid, meetings);
	if (!hold(rows, MOST_MEETINGS, &meetings_lost))
		return NULL;
	meeting = lookup_or_init(meetings, &key, &none);
	if (!meeting) {
		subtract_row(rows);
		return NULL;
	}
	if (!__sync_fetch_and_add(&meeting->refs, 1) && meetings_lost)
		meeting->from = number + ARRIVALS; /* others may have called while there was no room */
	on->met |= 1u << at;
	return meeting;
}

/* A communicator ends: the last one that holds a row removes it. */
static __always_inline void leave(__u32 tgid, struct communicator *on)
{
	__u64 *rows = on->met ? ROWS(tgid, meetings) : NULL;

	for (__u32 at = 0; at < kind_Send; at++) {
		struct meeting_key key = meeting_key_of(on, at);
		struct meeting *meeting;

		if (!(on->met & 1u << at))
			continue;
		subtract_row(rows);
		meeting = bpf_map_lookup_elem(&meetings, &key);
		if (meeting && on->away & 1u << at)
			add(&meeting->away, -1);
		if (meeting && __sync_fetch_and_add(&meeting->refs, -1) <= 1)
			bpf_map_delete_elem(&meetings, &key);
	}
	on->met = on->away = 0;
}

/* Calls of this rank are missing from now on: where it meets others nobody knows who was first. */
static __always_inline void go_away(struct communicator *on)
{
	for (__u32 at = 0; at < kind_Send; at++) {
		struct meeting_key key = meeting_key_of(on, at);
		struct meeting *meeting;
		__u32 bit = 1u << at;

		if (!(on->met & bit) || __sync_fetch_and_or(&on->away, bit) & bit)
			continue;
		meeting = bpf_map_lookup_elem(&meetings, &key);
		if (meeting)
			add(&meeting->away, 1);
	}
}

/* All calls that NCCL counts are seen again, from the one with this number on. */
static __always_inline void come_back(struct communicator *on, __u64 number)
{
	struct meeting_key key = meeting_key_of(on, 0);
	struct meeting *meeting;

	if (!(on->away & 1) || !(__sync_fetch_and_and(&on->away, ~1u) & 1))
		return;
	meeting = bpf_map_lookup_elem(&meetings, &key);
	if (!meeting)
		return;
	if (meeting->from < number)
		meeting->from = number;
	add(&meeting->away, -1);
}
