/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What DATA frames of HTTP/2 have of an answer's body: events, lines, messages of gRPC. */
#pragma once
#include "streams.h"

#define PREFIX 5 /* of gRPC's messages: whether it is compressed, and the length */

static __always_inline void message_sent(struct request *out, __u64 now)
{
	if (out->first)
		event_sent(out, now);
	else
		out->first = out->last = now;
	out->messages++;
}

/* Takes some bytes of an answer of gRPC's messages. */
static __always_inline bool message_bytes(struct walk *walk, struct frames *frames, struct stream *stream,
					  __u64 here)
{
	struct parser *parser = &frames->parser;
	__u64 word = stream->prefix || here < PREFIX || !look(walk) ? 0 : next_word(walk);
	int byte;

	if (word) {
		stream->left = __builtin_bswap32(word >> 8);
		stream->prefix = PREFIX;
		skip(walk, parser, PREFIX);
		here -= PREFIX;
	} else if (stream->prefix < PREFIX) {
		byte = byte_at(walk, parser);
		if (byte < 0)
			return false;
		parser->left--;
		stream->left = stream->left << 8 | byte; /* the first byte of five goes */
		stream->prefix++;
		here--;
	}
	if (stream->prefix < PREFIX)
		return true;
	if (here > stream->left)
		here = stream->left;
	stream->left -= here;
	skip(walk, parser, here);
	if (!stream->left) {
		message_sent(&stream->out, walk->now);
		stream->prefix = 0;
	}
	return true;
}

/* Takes bytes of lines of JSON: those that end with one. */
static __always_inline bool line_bytes(struct walk *walk, struct frames *frames, struct request *out,
				       __u64 here)
{
	__u8 last = 0;

	if (!walk->base || !read_user(&last, walk->base + walk->at + here - 1))
		return false;
	keep_begin(out, walk->base + walk->at, here);
	skip(walk, &frames->parser, here);
	if (last != '\n')
		return true;
	if (out->first)
		event_sent(out, walk->now);
	else
		out->first = out->last = walk->now;
	return true;
}

/* What an answer is, by the first byte of its body: its field content-type is compressed. */
static __always_inline enum body body_of(__u8 byte)
{
	if (byte <= 1)
		return A_MESSAGE;
	if (byte == 'd' || byte == 'e' || byte == 'i' || byte == 'r' || byte == ':' || byte == '\n' ||
	    byte == '\r')
		return AN_EVENT;
	return byte == '{' ? A_LINE : ANYTHING;
}

/* What is followed. */
struct course {
	struct walk *walk;
	struct connection *connection;
	struct stream *stream;
};

/* One step through what a frame has of an answer's body, of which some more is here; 1 ends the walk. */
static __always_inline long take_body(struct course *course)
{
	struct walk *walk = course->walk;
	struct frames *frames = &course->connection->frames_sent;
	struct stream *stream = course->stream;
	struct parser *parser = &frames->parser;
	__u64 here = walk->size - walk->at;
	struct request *out = &stream->out;

	if (here > parser->left)
		here = parser->left;
	if (!stream->body) {
		if (!look(walk)) {
			walk->failed = 1;
			return 1;
		}
		stream->body = body_of(walk->window[(walk->at - walk->loaded_at) & (WINDOW - 1)]);
		out->flags |= stream->body == AN_EVENT	  ? EVENT_STREAM
			      : stream->body == A_LINE	  ? EVENT_STREAM | LINES
			      : stream->body == A_MESSAGE ? MESSAGES
							  : 0;
	}
	if (stream->body == AN_EVENT) {
		walk->failed = !stream_bytes(walk, parser, &stream->event, out, here);
	} else if (stream->body == A_LINE) {
		walk->failed = !line_bytes(walk, frames, out, here);
	} else if (stream->body == A_MESSAGE) {
		walk->failed = !message_bytes(walk, frames, stream, here);
	} else {
		keep_begin(out, walk->base ? walk->base + walk->at : 0, here);
		skip(walk, parser, here);
	}
	return walk->failed || !parser->left || walk->at >= walk->size ? 1 : 0;
}

static long body_step(__u32 index, struct course *course)
{
	return take_body(course);
}

/* Takes what is here of a DATA frame. */
static __always_inline bool data_bytes(struct course *course, struct frames *frames, __u64 here, bool sends)
{
	struct walk *walk = course->walk;
	struct stream *stream = stream_of(walk->key, frames->stream);

	if (!stream) {
		skip(walk, &frames->parser, here);
	} else if (!sends) {
		stream->out.request_bytes += here;
		skip(walk, &frames->parser, here);
	} else {
		stream->out.response_bytes += here;
		course->stream = stream;
		walk->kept = walk->at;
		if (!take_body(course)) /* mostly all of it */
			bpf_loop(MOST_STEPS, body_step, course, 0);
		if (stream->body != A_MESSAGE)
			keep_tail(walk, &stream->out);
	}
	return !walk->failed;
}
