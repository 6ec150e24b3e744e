/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a server sends: answers to the requests that it has read, in their order. */
#pragma once
#include "arrivals.h"
#include "events.h"
#include "http2.h"
#include "processes.h"
#include "records.h"

/* By the socket's address. They take memory only as they are used, and go with the connection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_CONNECTIONS);
	__type(key, __u64);
	__type(value, struct connection);
} connections SEC(".maps");
__u64 connections_lost = 0, connections_full_tick = 0;
/* Connections that were given up, for bytes that are not HTTP/1.1 or could not be read. */
__u64 unreadable = 0;

static __always_inline void request_received(struct connection *connection)
{
	struct pending *request = &connection->pending[connection->received & (MOST_PENDING - 1)];
	__u32 tgid = connection->tgid;
	struct process *process;

	request->post = BEGINS(request->word, "POST ");
	request->head = BEGINS(request->word, "HEAD ");
	request->bytes = connection->reading.bytes;
	if (request->post) {
		process = bpf_map_lookup_elem(&processes, &tgid);
		if (process)
			add(&process->begun, 1);
	}
	connection->received++;
}

static __always_inline void begin_answer(struct connection *connection, struct walk *walk)
{
	struct pending *request = &connection->pending[connection->answered & (MOST_PENDING - 1)];
	struct request *out = &connection->out;

	__builtin_memset(out, 0, __builtin_offsetof(struct request, line));
	__builtin_memset(&connection->event, 0, sizeof(connection->event));
	__builtin_memcpy(out->line, request->line, LINE);
	if (connection->trace.known && connection->trace.of == connection->answered)
		__builtin_memcpy(out->traceparent, connection->trace.parent, TRACEPARENT);
	out->start = request->start;
	out->queue_ns = request->queue_ns;
	out->flags = request->flags;
	out->tid = request->tid;
	connection->event.fresh = 1;
	connection->answering = 1;
	if (walk)
		walk->kept = walk->at;
}

/* Whether the request that is answered is not read to its end. */
static __always_inline bool is_in_body(struct connection *connection)
{
	return connection->answered + 1 == connection->received && connection->reading.state >= CHUNK_SIZE;
}

/* Sends the record of the answer that has ended. The end of the connection may be seen on another CPU meanwhile. */
static __always_inline void finish(struct connection *connection, enum outcome outcome, __u64 now)
{
	struct pending *request = &connection->pending[connection->answered & (MOST_PENDING - 1)];
	struct request *out = &connection->out;
	struct process *process;
	__u32 tgid = connection->tgid;

	if (!__sync_lock_test_and_set(&connection->answering, 0))
		return;
	if (request->post) {
		out->end = now;
		out->outcome = outcome;
		out->tgid = tgid;
		keep_thread(out);
		out->request_bytes = is_in_body(connection) ? connection->reading.bytes : request->bytes;
		out->response_bytes = connection->writing.bytes;
		send_request(out);
		process = bpf_map_lookup_elem(&processes, &tgid);
		if (process)
			add(&process->ended, 1);
	}
	connection->answered++;
}

/* The head of an answer has ended. False where what follows is not HTTP/1.1. */
static __always_inline bool answer_begins(struct connection *connection, struct walk *walk)
{
	struct pending *request = &connection->pending[connection->answered & (MOST_PENDING - 1)];
	struct parser *parser = &connection->writing;
	__u16 status = connection->out.status;

	if (status == 101 && request->upgrade && connection->answered + 1 == connection->received)
		connection->http2 = UPGRADED;
	else if (status == 101)
		connection->http2 = OTHER_PROTOCOL;
	if (connection->http2 == UPGRADED || (status < 200 && status != 101)) {
		connection->answering = 0;
		parser->state = START;
		return true;
	}
	parser->state = UNTIL_CLOSE;
	if (request->head || status == 204 || status == 304 || status == 101)
		parser->state = START;
	else if (parser->chunked)
		parser->state = CHUNK_SIZE;
	else if (parser->has_length)
		parser->state = parser->left ? BODY : START;
	if (parser->state == CHUNK_SIZE)
		parser->left = parser->length = parser->extension = 0;
	if (parser->state == START) {
		keep_tail(walk, &connection->out);
		finish(connection, COMPLETE, walk->now);
	}
	return true;
}

/* The status in the first line of an answer; NO_NUMBER where it is none. */
static __always_inline __u16 status_of(struct parser *parser)
{
	__u8 first = parser->line[8] - '0', second = parser->line[9] - '0', third = parser->line[10] - '0';

	return first > 9 || second > 9 || third > 9 ? NO_NUMBER : first * 100 + second * 10 + third;
}

static __always_inline void answer_header(struct parser *parser, struct request *out)
{
	header(parser);
	if (!BEGINS(parser->words[0], "content-"))
		return;
	if (BEGINS(parser->words[1], "type:tex") && BEGINS(parser->words[2], "t/event-"))
		out->flags |= EVENT_STREAM;
	if (BEGINS(parser->words[1], "type:app") && BEGINS(parser->words[2], "lication") &&
	    (BEGINS(parser->words[3], "/x-ndjso") || BEGINS(parser->words[3], "/jsonl")))
		out->flags |= EVENT_STREAM | LINES;
	if (BEGINS(parser->words[1], "encoding") && !BEGINS(parser->words[2], ":identi"))
		out->flags |= ENCODED;
}

static __always_inline bool answer_line(struct connection *connection, struct walk *walk)
{
	struct parser *parser = &connection->writing;

	if (parser->state == FIRST_LINE) {
		if (!BEGINS(parser->words[0], "http/1."))
			return false;
		connection->out.status = status_of(parser);
		parser->state = HEADERS;
	} else if (!parser->length) {
		return answer_begins(connection, walk);
	} else {
		parser->ended = 1;
		return true;
	}
	forget_line(parser);
	return true;
}

static __always_inline void keep_begin(struct request *out, __u64 from, __u64 size)
{
	__u32 at = out->begin_size;

	if (at >= BEGIN || !from)
		return;
	size = at_most(size, BEGIN);
	at = at_most(at, BEGIN - 1);
	if (!bpf_probe_read_user(out->begin + at, size, (void *)from))
		out->begin_size = at + size;
}

/* Passes eight bytes in the middle of a line of an event, of which enough is known. False where there are not so many. */
static __always_inline bool long_line(struct walk *walk, struct parser *parser, struct event *event,
				      struct request *out, __u64 size)
{
	__u64 word;

	if (size < 8 || event->length < sizeof(event->line) || out->begin_size < sizeof(out->begin))
		return false;
	word = look(walk) ? next_word(walk) : 0;
	if (!word || has_byte(word, '\n') || has_byte(word, '\r'))
		return false;
	event->length += 8;
	event->recent = word;
	skip(walk, parser, 8);
	return true;
}

/* Takes some of the next bytes of an event stream, of which `size` are here. False where they cannot be read. */
static __always_inline bool stream_bytes(struct walk *walk, struct parser *parser, struct event *event,
					 struct request *out, __u64 size)
{
	int byte;

	if (out->first) {
		size = event_bytes(walk, event, out, size);
		skip(walk, parser, size);
		return size;
	}
	if (long_line(walk, parser, event, out, size))
		return true;
	byte = byte_at(walk, parser);
	if (byte < 0)
		return false;
	if (out->begin_size < sizeof(out->begin))
		out->begin[out->begin_size++ & (sizeof(out->begin) - 1)] = byte;
	if (parser->state != UNTIL_CLOSE)
		parser->left--;
	event_byte(event, out, byte, walk->now);
	return true;
}

/* Bytes of an answer's body. False where they cannot be read. */
static __always_inline bool answer_body(struct connection *connection, struct walk *walk)
{
	struct parser *parser = &connection->writing;
	struct request *out = &connection->out;
	__u64 size = here(walk, parser), from = walk->base ? walk->base + walk->at : 0;

	if ((out->flags & (EVENT_STREAM | ENCODED)) == EVENT_STREAM && size) {
		if (!stream_bytes(walk, parser, &connection->event, out, size))
			return false;
	} else {
		keep_begin(out, from, size);
		skip(walk, parser, size);
	}
	if (parser->left || parser->state == UNTIL_CLOSE)
		return true;
	if (parser->state == CHUNK) {
		chunk_ends(walk, parser);
	} else {
		parser->state = START;
		keep_tail(walk, out);
		finish(connection, COMPLETE, walk->now);
	}
	return true;
}

/* An answer to a request with no end of its head yet: too large, malformed, late. What comes of it is read no more.
 * False where no request has begun. */
static __always_inline bool refuse(struct connection *connection)
{
	struct parser *parser = &connection->reading;

	if (parser->state != FIRST_LINE && parser->state != HEADERS)
		return false;
	request_received(connection);
	parser->state = UNTIL_CLOSE;
	return true;
}

/* One byte of an answer's lines. False where it cannot be read, or is not of HTTP/1.1. */
static __always_inline bool answer_byte(struct connection *connection, struct walk *walk)
{
	struct parser *parser = &connection->writing;
	int byte = byte_at(walk, parser);

	if (byte < 0)
		return false;
	if (parser->state >= CHUNK_SIZE) {
		if (chunk_line(parser, byte)) {
			parser->state = START;
			keep_tail(walk, &connection->out);
			finish(connection, COMPLETE, walk->now);
		}
		return true;
	}
	if (byte == '\r')
		return true;
	if (is_complete(parser, byte)) {
		answer_header(parser, &connection->out);
		forget_line(parser);
	}
	if (byte == '\n')
		return answer_line(connection, walk);
	keep_line(parser, byte);
	return true;
}

/* One step through what was sent, of which there is some more; 1 ends the walk. */
static long answer_step(__u32 index, struct steps *steps)
{
	struct connection *connection = steps->connection;
	struct walk *walk = steps->walk;
	struct parser *parser = &connection->writing;

	if (parser->state == START) {
		if (connection->answered == connection->received && !refuse(connection)) {
			walk->failed = 1;
			return 1;
		}
		begin_answer(connection, walk);
		begin_message(parser);
	}
	if (parser->state == CHUNK_SIZE && !parser->length && size_line(walk, parser) &&
	    walk->at >= walk->size)
		return 1;
	if (parser->state >= BODY)
		walk->failed = !answer_body(connection, walk);
	else
		walk->failed = !answer_byte(connection, walk);
	return walk->failed || connection->http2 || walk->at >= walk->size ? 1 : 0;
}

CHECKED_ONCE int sent_lines(struct connection *connection)
{
	struct steps steps = {.connection = connection};

	if (!connection)
		return 0;
	steps.walk = &connection->sends;
	bpf_loop(MOST_STEPS, answer_step, &steps, 0);
	return 0;
}
