/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Non-blocking communicators (blocking = 0 in ncclConfig_t): their calls return ncclInProgress, and the caller polls
 * ncclCommGetAsyncError until the work is done. */
#pragma once
#include "comms.h"

/* A call returned ncclInProgress. The program waits for it only once it polls: it may load its data first. */
__noinline int begin_pending(__u32 tgid, __u64 address, __u32 api, __u64 start_ns)
{
	static const struct pending none;
	struct comm_key key = {.tgid = tgid, .address = address};
	struct pending *row = address ? lookup_or_hold(pending, tgid, &key, &none, MOST_PENDING) : NULL;

	if (!row)
		return 0;
	row->start_ns = start_ns;
	row->polled_ns = 0;
	row->api = api;
	return 0;
}

/* The library reports ncclInProgress. The work may have begun before the probes were attached, or in a group. */
static __always_inline void poll_pending(__u32 tgid, __u64 address, __u32 api, __u64 now)
{
	struct comm_key key = {.tgid = tgid, .address = address};
	struct pending *row = bpf_map_lookup_elem(&pending, &key);

	if (!row) {
		begin_pending(tgid, address, api, now);
		row = bpf_map_lookup_elem(&pending, &key);
	}
	if (row)
		row->polled_ns = now;
}

/* Most polled communicators are not pending: these cost one look-up. */
__noinline int end_pending(__u32 tgid, __u64 address)
{
	struct comm_key key = {.tgid = tgid, .address = address};

	if (bpf_map_lookup_elem(&pending, &key) && !bpf_map_delete_elem(&pending, &key))
		subtract_row(ROWS(tgid, pending));
	return 0;
}

/* A call that makes a communicator returned. For a Split, Shrink or Grow the program polls the parent: the library stores
 * the address of the new communicator when that is ready. Otherwise the program polls the communicator itself. */
static __always_inline void note_creation(__u32 tgid, const struct flight *call, __s32 code)
{
	bool child = call->cookie.kind != kind_Init && call->second;

	if (code == IN_PROGRESS)
		begin_pending(tgid, child ? call->second : call->comm, call->cookie.api, call->start_ns);
	else
		end_pending(tgid, call->comm);
}

/* The library returns an error at each call of this function; only a new error is counted. */
static __always_inline void note_async_error(__u32 tgid, const struct flight *call, __u64 now)
{
	struct comm_key key = {.tgid = tgid, .address = call->comm};
	struct communicator *on = bpf_map_lookup_elem(&communicators, &key);
	__u32 code = read_u64(call->second);

	if (code == IN_PROGRESS)
		poll_pending(tgid, call->comm, call->cookie.api, now);
	else
		end_pending(tgid, call->comm);
	if (!on || !on->who.hash) /* it has made no call yet, or is still being made */
		on = communicator_at(tgid, call->cookie, call->comm);
	if (!on || on->async_error == code || code == IN_PROGRESS)
		return;
	on->async_error = code;
	if (code)
		count_error(tgid, call->cookie.api, code, now);
}
