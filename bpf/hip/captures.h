/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Streams that are captured into graphs: a stream-ordered allocation or free there takes or gives no memory. */
#pragma once
#include "memory.h"
#include "../arguments.h"

#define PER_THREAD_STREAM 2

/* Those that a capture began with. Of a default stream, which is the thread's own if it can be captured, the key has the
 * tid. */
OBJECTS(captured, __u8, 1024)

static __always_inline struct object captured_key(const struct thread *thread, __u64 stream)
{
	return object_at(stream && stream != PER_THREAD_STREAM ? stream : thread->tid);
}

/* How many streams of a process are captured now. */
static __always_inline __u64 captures_of(__u32 tgid)
{
	const struct shares *held = bpf_map_lookup_elem(&shares, &tgid);

	return held ? held->rows[table_captured] : 0;
}

static __always_inline void begin_capture(const struct call *call)
{
	static const __u8 none;
	struct object key = captured_key(&call->thread, call->arguments[0]);

	if (!shared_row(captured, key.tgid, &key, &none))
		lose_sight(key.tgid); /* what is allocated there would be taken for memory */
}

/* False if it was not seen to begin. */
static __always_inline bool end_capture(const struct thread *thread, __u64 stream)
{
	struct object key = captured_key(thread, stream);

	return captures_of(key.tgid) && remove_shared(captured, key.tgid, &key);
}

/* A capture has ended. If it began before the probes, what was allocated in it has been taken for memory. */
static __always_inline void complete_capture(const struct call *call)
{
	if (!end_capture(&call->thread, call->arguments[0]))
		lose_sight(call->thread.tgid);
}

/* Whether the end of a capture that returned this has ended it: hipSuccess, or that it was invalidated or unjoined. */
static __always_inline bool has_ended_capture(__s32 code)
{
	return !code || code == 901 || code == 904;
}

/* An allocation from a pool begins, on the stream in this argument. One that has joined a capture is not known. */
static __always_inline void allocate_in_order(struct pt_regs *ctx, struct call *call, __u8 stream_at)
{
	struct object key;

	if (!captures_of(call->thread.tgid))
		return;
	key = captured_key(&call->thread, argument(ctx, stream_at));
	if (bpf_map_lookup_elem(&captured, &key))
		call->arguments[1] = 0; /* bytes */
	else
		lose_sight(key.tgid);
}

/* A free begins: what a graph allocates has no row. */
static __always_inline void free_in_order(struct call *call)
{
	take(call);
	if (!call->arguments[1] && captures_of(call->thread.tgid))
		call->arguments[0] = 0;
}
