/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Streams: on which device each is, as is what is allocated in its order whatever context is current, and which ones are
 * captured into graphs. */
#pragma once
#include "calls.h"

#define PER_THREAD 2
#define SPECIAL_STREAMS                                                                                      \
	PER_THREAD /* CU_STREAM_LEGACY, CU_STREAM_PER_THREAD: of the current context, as NULL is */

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
MAP(streams, HASH, struct stream_key, struct stream, 8192);

/* Those that a capture began with. Of a default stream, which is the thread's own if it can be captured, the key has the
 * tid. */
MAP(captured, HASH, struct stream_key, __u8, 1024);

static __always_inline struct stream_key captured_key(const struct thread *thread, __u64 handle)
{
	return (struct stream_key){.handle = handle && handle != PER_THREAD ? handle : thread->tid,
				   .tgid = thread->tgid};
}

/* How many streams of a process are captured now. */
static __always_inline __u64 captures_of(__u32 tgid)
{
	const struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	return process ? process->rows[table_captured] : 0;
}

static __always_inline void begin_capture(const struct thread *thread, __u64 handle)
{
	static const __u8 none;
	struct stream_key key = captured_key(thread, handle);

	if (!row_of(captured, &key, &none)) /* then what is allocated there would be taken for memory */
		lose_memory(thread->tgid);
}

/* False if it was not seen to begin. */
static __always_inline bool end_capture(const struct stream_key *key)
{
	if (bpf_map_delete_elem(&captured, key))
		return false;
	return_row(key->tgid, table_captured);
	return true;
}

/* Whether the end of a capture that returned this has ended it: CUDA_SUCCESS, or that it was invalidated or unjoined. */
static __always_inline bool has_ended_capture(__s32 code)
{
	return !code || code == 901 || code == 904;
}

/* A stream-ordered call in a capture takes or gives no memory: it becomes a node of the graph. */
static __always_inline bool allocates_in_graph(const struct thread *thread, const struct flight *call)
{
	bool named = call->cookie.effect == effect_allocate_from;
	struct stream_key key;

	if (call->cookie.memory != memory_pool || !(named || call->cookie.effect == effect_allocate) ||
	    !captures_of(thread->tgid))
		return false;
	key = captured_key(thread, call->arguments[named ? 3 : 2]);
	return bpf_map_lookup_elem(&captured, &key);
}

/* What a graph allocates has no row. The stream may be one that has joined the capture. */
static __always_inline bool frees_in_graph(const struct thread *thread, const struct flight *call)
{
	return call->cookie.memory == memory_pool && !call->taken.bytes && captures_of(thread->tgid);
}

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
	if (captures_of(key.tgid)) /* a context may have taken along the stream that had the handle before */
		end_capture(&key);
}

/* When a stream is about to be destroyed: another thread may be given its handle before the call has returned. */
static __always_inline void forget_stream(__u32 tgid, __u64 handle)
{
	struct stream_key key = {.handle = handle, .tgid = tgid};

	if (!bpf_map_delete_elem(&streams, &key))
		return_row(tgid, table_streams);
	if (captures_of(tgid))
		end_capture(&key);
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
