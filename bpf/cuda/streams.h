/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The device of each stream: memory that is allocated in the order of a stream is there, whatever context is current. */
#pragma once
#include "calls.h"

#define SPECIAL_STREAMS 2 /* CU_STREAM_LEGACY, CU_STREAM_PER_THREAD: of the current context, as NULL is */

struct stream_key {
	__u64 handle;
	__u32 tgid;
	__u32 zero;
};

/* Known while the returns of all calls of the library that made it are seen: others may have had the handle since. */
struct stream {
	__u32 returning;
	__u16 device; /* as in keys */
	__u8 library;
	__u8 zero;
};
MAP(streams, HASH, struct stream_key, struct stream, 16384);

/* A stream is of the context that is current when it is created. */
static __always_inline void note_stream(const struct thread *thread, const struct flight *call)
{
	struct stream_key key = {.handle = read_u64(call->arguments[0]), .tgid = thread->tgid};
	struct stream new = {.returning = call->returning,
			     .device = device_of_context(key.tgid, current_context(thread)),
			     .library = call->cookie.library};
	struct stream *known = key.handle && new.device ? row_of(streams, &key, &new) : NULL;

	if (known)
		*known = new;
}

/* When a stream is about to be destroyed: another thread may be given its handle before the call has returned. */
static __always_inline void forget_stream(__u32 tgid, __u64 handle)
{
	struct stream_key key = {.handle = handle, .tgid = tgid};

	if (!bpf_map_delete_elem(&streams, &key))
		return_row(tgid, table_streams);
}

/* For keys of a process that has used several devices. `current` is that of the thread. */
static __noinline int device_of_stream(__u32 tgid, __u64 handle, __u32 current)
{
	struct stream_key key = {.handle = handle, .tgid = tgid};
	const struct stream *known;

	if (handle <= SPECIAL_STREAMS)
		return current;
	known = bpf_map_lookup_elem(&streams, &key);
	return known && known->returning == returning_of(known->library) ? known->device : DEVICE_UNKNOWN;
}
