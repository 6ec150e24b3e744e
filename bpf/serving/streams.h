/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Streams of HTTP/2 connections: each is a request and its answer. */
#pragma once
#include "answers.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_HTTP2);
	__type(key, __u64);
	__type(value, struct http2);
} http2_connections SEC(".maps");
__u64 http2_connections_lost = 0, http2_connections_full_tick = 0;
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_STREAMS);
	__type(key, struct stream_key);
	__type(value, struct stream);
} streams SEC(".maps");
__u64 streams_lost = 0, streams_full_tick = 0;
static const struct http2 no_http2;
static const struct stream no_stream;
/* The connections of HTTP/2 that there were. */
__u64 http2_begun = 0;

static __always_inline struct http2 *http2_of(__u64 connection)
{
	return bpf_map_lookup_elem(&http2_connections, &connection);
}

static __always_inline struct stream *stream_of(__u64 connection, __u32 id)
{
	struct stream_key key = {.connection = connection, .id = id};

	return bpf_map_lookup_elem(&streams, &key);
}

struct search {
	struct http2 *http2;
	__u32 at;
	__u32 found;
};

static long find_slot(__u32 index, struct search *search)
{
	__u32 at = (search->at + index) & (MOST_OPEN - 1);

	if (search->http2->slots[at])
		return 0;
	search->at = at;
	search->found = 1;
	return 1;
}

/* A stream that begins; NULL (and counted) where there is no room. */
static __always_inline struct stream *new_stream(struct connection *connection, __u64 at, __u32 id)
{
	struct stream_key key = {.connection = at, .id = id};
	struct search search = {.http2 = http2_of(at), .at = id / 2};
	__u32 tgid = connection->tgid;
	struct process *process;
	struct stream *stream;

	if (!search.http2)
		return NULL;
	bpf_loop(MOST_OPEN, find_slot, &search, 0);
	if (!search.found) {
		add(&streams_lost, 1);
		return NULL;
	}
	stream = lookup_or_init(streams, &key, &no_stream);
	if (!stream)
		return NULL;
	search.http2->slots[search.at & (MOST_OPEN - 1)] = id;
	stream->slot = search.at;
	stream->event.fresh = 1;
	stream->out.tgid = tgid;
	stream->out.connection = connection->http2_id;
	stream->out.stream = id;
	stream->open = 1;
	process = bpf_map_lookup_elem(&processes, &tgid);
	if (process)
		add(&process->begun, 1);
	return stream;
}

/* The client has begun a request. */
static __always_inline void begin_stream(struct walk *walk, struct connection *connection, __u32 id)
{
	struct stream *stream;

	if (id <= connection->newest)
		return;
	connection->newest = id;
	stream = new_stream(connection, walk->key, id);
	if (!stream)
		return;
	stream->out.start = began(walk);
	stream->out.flags = stream->out.start ? QUEUE_KNOWN : 0;
	if (!stream->out.start)
		stream->out.start = walk->now;
	stream->out.queue_ns = walk->now - stream->out.start;
	stream->out.tid = bpf_get_current_pid_tgid();
}

/* The request with the upgrade to HTTP/2 is the first stream (RFC 7540, 3.2). */
static __always_inline void upgraded(struct connection *connection, __u64 key)
{
	struct pending *request = &connection->pending[connection->answered & (MOST_PENDING - 1)];
	struct stream *stream;
	struct process *process;
	__u32 tgid = connection->tgid;

	connection->newest = 1;
	stream = new_stream(connection, key, 1);
	process = bpf_map_lookup_elem(&processes, &tgid);
	if (process && request->post)
		add(&process->ended, 1); /* it began twice */
	connection->answered = connection->received;
	if (!stream)
		return;
	stream->out.start = request->start;
	stream->out.queue_ns = request->queue_ns;
	stream->out.flags = request->flags;
	stream->out.tid = request->tid;
	stream->out.request_bytes = request->bytes;
	__builtin_memcpy(stream->out.line, request->line, LINE);
	if (connection->trace.known && connection->trace.of + 1 == connection->received)
		__builtin_memcpy(stream->out.traceparent, connection->trace.parent, TRACEPARENT);
}

/* Sends the record of a stream that has ended, and forgets it. Both directions may end it at once. */
CHECKED_ONCE int finish_stream(__u64 connection, __u32 id, enum outcome outcome, __u64 now)
{
	struct stream_key key = {.connection = connection, .id = id};
	struct stream *stream = bpf_map_lookup_elem(&streams, &key);
	struct http2 *http2 = http2_of(connection);
	struct process *process;
	__u32 tgid;

	if (!http2 || !stream || !__sync_lock_test_and_set(&stream->open, 0))
		return 0;
	stream->out.end = now;
	stream->out.outcome = outcome;
	keep_thread(&stream->out);
	send_request(&stream->out);
	tgid = stream->out.tgid;
	process = bpf_map_lookup_elem(&processes, &tgid);
	if (process)
		add(&process->ended, 1);
	http2->slots[stream->slot & (MOST_OPEN - 1)] = 0;
	bpf_map_delete_elem(&streams, &key);
	return 0;
}

struct ending {
	struct http2 *http2;
	__u64 key;
	__u64 now;
	__u32 after;
	enum outcome outcome;
};

static long end_slot(__u32 index, struct ending *ending)
{
	__u32 id = ending->http2->slots[index & (MOST_OPEN - 1)];

	if (id > ending->after)
		finish_stream(ending->key, id, ending->outcome, ending->now);
	return 0;
}

/* Ends the streams after this one. */
static __always_inline void end_after(__u64 key, __u32 after, enum outcome outcome, __u64 now)
{
	struct ending ending = {
	    .http2 = http2_of(key), .key = key, .now = now, .after = after, .outcome = outcome};

	if (ending.http2)
		bpf_loop(MOST_OPEN, end_slot, &ending, 0);
}

/* Ends what is open on a connection of HTTP/2, and forgets it. */
static __always_inline void end_streams(struct connection *connection, __u64 key, enum outcome outcome,
					__u64 now)
{
	struct http2 *http2 = http2_of(key);
	struct fields *last;

	if (!http2)
		return;
	end_after(key, 0, outcome, now);
	last = &http2->read;
	last->kind = CONNECTION_ENDED;
	last->connection = connection->http2_id;
	if (bpf_ringbuf_output(&requests, last, __builtin_offsetof(struct fields, block), 0))
		add(&requests_lost, 1);
	bpf_map_delete_elem(&http2_connections, &key);
}
