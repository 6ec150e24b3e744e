/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Frames of HTTP/2, in the pieces in which calls move them. */
#pragma once
#include "bodies.h"

#define FRAME_HEADER 9
#define REST_OF_PREFACE 8 /* after its first line */
#define PREFACE 24

/* Gives user space a block of fields that is complete. */
static __always_inline void send_fields(struct http2 *http2, struct frames *frames, bool sends)
{
	struct fields *fields = &frames->fields;
	__u32 size = at_most(fields->size, BLOCK + PART);

	fields->kind = sends ? ANSWER_FIELDS : REQUEST_FIELDS;
	fields->connection = http2->id;
	fields->order = frames->blocks++;
	if (bpf_ringbuf_output(&requests, fields, __builtin_offsetof(struct fields, block) + size, 0))
		add(&requests_lost, 1);
}

/* Takes some bytes of a block of fields. */
static __always_inline bool fields_bytes(struct walk *walk, struct frames *frames, __u64 here)
{
	struct fields *fields = &frames->fields;
	__u32 at = fields->size, size = at_most(here, PART);

	if (at >= BLOCK) {
		fields->cut = 1;
		skip(walk, &frames->parser, here);
		return true;
	}
	if (!walk->base ||
	    bpf_probe_read_user(fields->block + (at & (BLOCK - 1)), size, (void *)(walk->base + walk->at)))
		return false;
	fields->size = at + size;
	skip(walk, &frames->parser, size);
	return true;
}

static __always_inline bool gather(struct walk *walk, struct frames *frames)
{
	int byte;

	if (frames->gathered >= 4) {
		skip(walk, &frames->parser, here(walk, &frames->parser));
		return true;
	}
	byte = byte_at(walk, &frames->parser);
	if (byte < 0)
		return false;
	frames->parser.left--;
	frames->last = frames->last << 8 | byte;
	frames->gathered++;
	return true;
}

static __always_inline void fields_end(struct walk *walk, struct http2 *http2, struct frames *frames,
				       bool sends)
{
	struct stream *stream;

	if (!(frames->flags & END_FIELDS))
		return;
	frames->open = 0;
	stream = frames->of_open == PROMISE ? NULL : stream_of(walk->key, frames->stream);
	if (stream && sends)
		stream->out.response_bytes += frames->fields.size;
	else if (stream)
		stream->out.request_bytes += frames->fields.size;
	frames->fields.stream = frames->of_open == PROMISE ? 0 : frames->stream;
	send_fields(http2, frames, sends);
}

static __always_inline void frame_ends(struct walk *walk, struct http2 *http2, struct frames *frames,
				       bool sends)
{
	bool fields = frames->type == FIELDS || frames->type == CONTINUATION || frames->type == PROMISE;
	bool ends = frames->type == DATA && frames->flags & END_STREAM;

	frames->inside = frames->parser.length = 0;
	if (fields) {
		fields_end(walk, http2, frames, sends);
		ends = !frames->open && frames->ends;
	}
	if (frames->type == RESET)
		finish_stream(http2, walk->key, frames->stream, sends ? UNTERMINATED : CLIENT_GONE,
			      walk->now);
	else if (ends && sends)
		finish_stream(http2, walk->key, frames->stream, COMPLETE, walk->now);
	else if (frames->type == GOAWAY && sends)
		end_after(http2, walk->key, frames->last & ~(1u << 31), UNTERMINATED, walk->now);
}

/* The header of a frame is complete. False where it is not HTTP/2. */
static __always_inline bool frame_begins(struct walk *walk, struct http2 *http2, struct frames *frames,
					 bool sends)
{
	struct parser *parser = &frames->parser;
	__u8 *header = (__u8 *)parser->line;
	bool begins;

	parser->left = header[0] << 16 | header[1] << 8 | header[2];
	frames->type = header[3];
	frames->flags = header[4];
	frames->stream = (header[5] & 0x7f) << 24 | header[6] << 16 | header[7] << 8 | header[8];
	frames->skipped = frames->padding = frames->padded = frames->gathered = 0;
	frames->inside = 1;
	begins = frames->type == FIELDS || frames->type == PROMISE;
	if (frames->open != (frames->type == CONTINUATION))
		return false;
	if ((begins || frames->type == DATA) && frames->flags & PADDED)
		frames->padded = 1;
	if (frames->type == FIELDS && frames->flags & PRIORITIZED)
		frames->skipped = 5;
	else if (frames->type == PROMISE)
		frames->skipped = 4;
	if (parser->left < frames->skipped + frames->padded)
		return false;
	parser->left -= frames->skipped + frames->padded;
	if (begins) {
		if (!frames->stream)
			return false;
		frames->fields.size = frames->fields.cut = 0;
		frames->open = 1;
		frames->of_open = frames->type;
		frames->ends = frames->type == FIELDS && frames->flags & END_STREAM;
		if (!sends && frames->type == FIELDS && frames->stream & 1)
			begin_stream(walk, http2, frames->stream);
	}
	return true;
}

/* Takes some of a frame's header. False where it cannot be read, or is of no frame. */
static __always_inline bool header_bytes(struct walk *walk, struct http2 *http2, struct frames *frames,
					 bool sends)
{
	struct parser *parser = &frames->parser;
	__u32 offset;
	int byte;

	if (!look(walk, parser))
		return false;
	offset = walk->at - walk->window;
	if (!parser->length && offset <= WINDOW - FRAME_HEADER && offset + FRAME_HEADER <= walk->loaded) {
		__builtin_memcpy(parser->line, parser->window + offset, FRAME_HEADER);
		walk->at += FRAME_HEADER;
		return frame_begins(walk, http2, frames, sends);
	}
	byte = byte_at(walk, parser);
	if (byte < 0)
		return false;
	if (parser->length < FRAME_HEADER)
		parser->line[parser->length] = byte;
	if (++parser->length < FRAME_HEADER)
		return true;
	return frame_begins(walk, http2, frames, sends);
}

static __always_inline bool content_bytes(struct course *course, struct frames *frames, bool sends)
{
	struct walk *walk = course->walk;
	__u64 size = here(walk, &frames->parser);

	if (frames->type == DATA)
		return data_bytes(course, frames, size, sends);
	if (frames->type == FIELDS || frames->type == CONTINUATION || frames->type == PROMISE)
		return fields_bytes(walk, frames, size);
	if (frames->type == GOAWAY && sends)
		return gather(walk, frames);
	skip(walk, &frames->parser, size);
	return true;
}

/* Takes the length of the padding. */
static __always_inline bool padding_bytes(struct walk *walk, struct frames *frames)
{
	int byte = byte_at(walk, &frames->parser);

	if (byte < 0 || (__u64)byte > frames->parser.left)
		return false;
	frames->padded = 0;
	frames->padding = byte;
	frames->parser.left -= byte;
	return true;
}

/* Passes bytes that have no meaning here. */
static __always_inline void pass(struct walk *walk, __u32 *bytes)
{
	__u32 size = walk->size - walk->at;

	if (size > *bytes)
		size = *bytes;
	*bytes -= size;
	walk->at += size;
}

static __always_inline long frame_step(struct course *course, struct frames *frames, bool sends)
{
	struct http2 *http2 = course->http2;
	struct walk *walk = course->walk;
	bool followed = true;

	if (walk->at >= walk->size)
		return 1;
	if (!frames->inside)
		followed = header_bytes(walk, http2, frames, sends);
	else if (frames->padded)
		followed = padding_bytes(walk, frames);
	else if (frames->skipped)
		pass(walk, &frames->skipped);
	else if (frames->parser.left)
		followed = content_bytes(course, frames, sends);
	else
		pass(walk, &frames->padding);
	if (followed && frames->inside && !frames->padded && !frames->skipped && !frames->parser.left &&
	    !frames->padding)
		frame_ends(walk, http2, frames, sends);
	walk->failed = !followed;
	return walk->failed ? 1 : 0;
}

static long read_step(__u32 index, struct course *course)
{
	return frame_step(course, &course->http2->reading, false);
}

static long sent_step(__u32 index, struct course *course)
{
	return frame_step(course, &course->http2->writing, true);
}

CHECKED_ONCE int read_frames(__u64 key)
{
	struct course course = {.http2 = bpf_map_lookup_elem(&http2_connections, &key)};

	if (!course.http2)
		return 0;
	course.walk = &course.http2->reading.walk;
	bpf_loop(MOST_STEPS, read_step, &course, 0);
	return 0;
}

CHECKED_ONCE int sent_frames(__u64 key)
{
	struct course course = {.http2 = bpf_map_lookup_elem(&http2_connections, &key)};

	if (!course.http2)
		return 0;
	course.walk = &course.http2->writing.walk;
	bpf_loop(MOST_STEPS, sent_step, &course, 0);
	return 0;
}

/* Has what is kept of a connection of HTTP/2: at its first bytes the client's preface is on its way. */
static __always_inline struct http2 *http2_of(struct walk *walk)
{
	struct http2 *http2 = lookup_or_init(http2_connections, &walk->key, &no_http2);
	struct connection *connection = walk->connection;

	if (!http2)
		return NULL;
	http2->tgid = connection->tgid;
	if (http2->id)
		return http2;
	http2->id = __sync_fetch_and_add(&http2_begun, 1) + 1;
	http2->reading.inside = 1;
	http2->reading.type = SETTINGS;
	http2->reading.parser.left = connection->http2 == UPGRADED ? PREFACE : REST_OF_PREFACE;
	if (connection->http2 == UPGRADED)
		upgraded(walk, http2);
	return http2;
}

/* Follows what is left of a piece of what was read or sent. */
static __always_inline void follow_frames(struct walk *walk, bool sends)
{
	struct http2 *http2 = http2_of(walk);
	struct walk *rest;

	if (!http2) {
		walk->failed = 1;
		return;
	}
	rest = sends ? &http2->writing.walk : &http2->reading.walk;
	copy_walk(rest, walk);
	rest->loaded = 0; /* what is in the window of HTTP/1.1 */
	if (sends)
		sent_frames(walk->key);
	else
		read_frames(walk->key);
	walk->at = rest->at;
	walk->arrived = rest->arrived;
	walk->failed = rest->failed;
}
