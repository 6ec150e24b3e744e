/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a server reads: requests, of which those that post something are counted. */
#pragma once
#include "answers.h"

static __always_inline bool begin_request(struct connection *connection, struct walk *walk)
{
	struct pending *request = &connection->pending[connection->received & (MOST_PENDING - 1)];

	if (connection->received - connection->answered >= MOST_PENDING)
		return false;
	request->start = began(walk);
	request->flags = request->start ? QUEUE_KNOWN : 0;
	if (!request->start)
		request->start = walk->now;
	request->queue_ns = walk->now - request->start;
	request->upgrade = 0;
	request->tid = bpf_get_current_pid_tgid();
	__builtin_memset(request->line, 0, LINE);
	begin_message(&connection->reading);
	return true;
}

/* The head of a request has ended. */
static __always_inline void request_begins(struct connection *connection)
{
	struct parser *parser = &connection->reading;

	request_received(connection);
	if (parser->chunked) {
		parser->state = CHUNK_SIZE;
		parser->left = parser->length = parser->extension = 0;
	} else {
		parser->state = parser->left ? BODY : START;
	}
}

static __always_inline void request_ends(struct connection *connection)
{
	connection->pending[(connection->received - 1) & (MOST_PENDING - 1)].bytes =
	    connection->reading.bytes;
	connection->reading.state = START;
}

static __always_inline void keep_trace(struct connection *connection)
{
	struct parser *parser = &connection->reading;
	const __u32 name = sizeof("traceparent:") - 1, size = TRACEPARENT - 1;

	if (parser->length != name + size || !BEGINS(parser->words[0], "tracepar") ||
	    !BEGINS(parser->words[1], "ent:"))
		return;
	__builtin_memcpy(connection->trace.parent, parser->line + name, size);
	connection->trace.of = connection->received;
	connection->trace.known = 1;
}

static __always_inline void request_header(struct connection *connection)
{
	struct pending *request = &connection->pending[connection->received & (MOST_PENDING - 1)];
	struct parser *parser = &connection->reading;

	header(parser);
	keep_trace(connection);
	if (BEGINS(parser->words[0], "upgrade:") && parser->words[1] == WORD("h2c"))
		request->upgrade = 1;
	forget_line(parser);
}

static __always_inline bool request_line(struct connection *connection)
{
	struct pending *request = &connection->pending[connection->received & (MOST_PENDING - 1)];
	struct parser *parser = &connection->reading;

	if (parser->state == FIRST_LINE) {
		if (BEGINS(parser->recent, "HTTP/2.0") && BEGINS(request->word, "PRI * HT"))
			connection->http2 = PRIOR_KNOWLEDGE;
		else if (!BEGINS(parser->recent, "HTTP/1."))
			return false;
		parser->state = HEADERS;
	} else if (!parser->length) {
		request_begins(connection);
	} else {
		parser->ended = 1;
		return true;
	}
	forget_line(parser);
	return true;
}

static __always_inline bool request_byte(struct connection *connection, struct walk *walk, __u8 byte)
{
	struct pending *request = &connection->pending[connection->received & (MOST_PENDING - 1)];
	struct parser *parser = &connection->reading;

	if (parser->state >= CHUNK_SIZE) {
		if (chunk_line(parser, byte))
			request_ends(connection);
		return true;
	}
	if (byte == '\r')
		return true;
	if (parser->state == START) {
		if (byte == '\n') /* between messages */
			return true;
		if (byte < 'A' || byte > 'Z' || !begin_request(connection, walk))
			return false;
		parser->bytes = 1;
	}
	if (is_complete(parser, byte))
		request_header(connection);
	if (byte == '\n')
		return request_line(connection);
	if (parser->state == FIRST_LINE) {
		if (parser->length < LINE)
			request->line[parser->length & (LINE - 1)] = byte;
		parser->recent = parser->recent >> 8 | (__u64)byte << 56;
		parser->length++;
	} else {
		keep_line(parser, byte);
	}
	return true;
}

/* One step through what was read; 1 ends the walk. */
static long request_step(__u32 index, struct steps *steps)
{
	struct connection *connection = steps->connection;
	struct walk *walk = steps->walk;
	struct parser *parser = &connection->reading;
	int byte;

	if (walk->at >= walk->size)
		return 1;
	if (parser->state >= BODY) {
		skip(walk, parser, here(walk, parser));
		if (!parser->left && parser->state == CHUNK)
			chunk_ends(walk, parser);
		else if (!parser->left)
			request_ends(connection);
		return 0;
	}
	if (parser->state == CHUNK_SIZE && !parser->length && size_line(walk, parser))
		return 0;
	byte = byte_at(walk, parser);
	walk->failed = byte < 0 || !request_byte(connection, walk, byte);
	return walk->failed || connection->http2 ? 1 : 0;
}

CHECKED_ONCE int read_lines(struct connection *connection)
{
	struct steps steps = {.connection = connection};

	if (!connection)
		return 0;
	steps.walk = &connection->reads;
	bpf_loop(MOST_STEPS, request_step, &steps, 0);
	return 0;
}
