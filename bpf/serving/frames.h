/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Frames of HTTP/2, in the pieces in which calls move them. */
#pragma once
#include "bodies.h"

#define FRAME_HEADER 9
#define REST_OF_PREFACE 8 /* after its first line */
#define PREFACE 24

/* Gives user space a block of fields that is complete. */
static __always_inline void send_fields(struct connection *connection, struct frames *frames,
					struct fields *fields, bool sends)
{
	__u32 size = at_most(frames->size, BLOCK + PART);

	fields->kind = sends ? ANSWER_FIELDS : REQUEST_FIELDS;
	fields->connection = connection->http2_id;
	fields->stream = frames->of_open == PROMISE ? 0 : frames->stream;
	fields->order = frames->blocks++;
	fields->size = frames->size;
	fields->cut = frames->cut;
	if (bpf_ringbuf_output(&requests, fields, __builtin_offsetof(struct fields, block) + size, 0))
		add(&requests_lost, 1);
}

/* The block of fields of a direction. */
static __always_inline struct fields *fields_of(__u64 key, bool sends)
{
	struct http2 *http2 = http2_of(key);

	return !http2 ? NULL : sends ? &http2->sent : &http2->read;
}

/* Takes some bytes of a block of fields. */
static __always_inline bool fields_bytes(struct walk *walk, struct frames *frames, __u64 here, bool sends)
{
	__u32 at = frames->size, size = at_most(here, PART);
	struct fields *fields;

	if (at >= BLOCK) {
		frames->cut = 1;
		skip(walk, &frames->parser, here);
		return true;
	}
	fields = fields_of(walk->key, sends);
	if (!fields || !walk->base ||
	    bpf_probe_read_user(fields->block + (at & (BLOCK - 1)), size, (void *)(walk->base + walk->at)))
		return false;
	frames->size = at + size;
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

static __always_inline void fields_end(struct walk *walk, struct connection *connection,
				       struct frames *frames, bool sends)
{
	struct fields *fields = fields_of(walk->key, sends);
	struct stream *stream;

	if (!(frames->flags & END_FIELDS))
		return;
	frames->open = 0;
	stream = frames->of_open == PROMISE ? NULL : stream_of(walk->key, frames->stream);
	if (stream && sends)
		stream->out.response_bytes += frames->size;
	else if (stream)
		stream->out.request_bytes += frames->size;
	if (fields)
		send_fields(connection, frames, fields, sends);
}

static __always_inline void frame_ends(struct walk *walk, struct connection *connection,
				       struct frames *frames, bool sends)
{
	bool fields = frames->type == FIELDS || frames->type == CONTINUATION || frames->type == PROMISE;
	bool ends = frames->type == DATA && frames->flags & END_STREAM;

	frames->inside = frames->parser.length = 0;
	if (fields) {
		fields_end(walk, connection, frames, sends);
		ends = !frames->open && frames->ends;
	}
	if (frames->type == RESET)
		finish_stream(walk->key, frames->stream, sends ? UNTERMINATED : CLIENT_GONE, walk->now);
	else if (ends && sends)
		finish_stream(walk->key, frames->stream, COMPLETE, walk->now);
	else if (frames->type == GOAWAY && sends)
		end_after(walk->key, frames->last & ~(1u << 31), UNTERMINATED, walk->now);
}

/* The header of a frame is complete: eight bytes, and the last one. False where it is not HTTP/2. */
static __always_inline bool frame_begins(struct walk *walk, struct connection *connection,
					 struct frames *frames, __u64 header, __u8 last, bool sends)
{
	struct parser *parser = &frames->parser;
	bool begins;

	header = __builtin_bswap64(header);
	parser->left = header >> 40;
	frames->type = header >> 32;
	frames->flags = header >> 24;
	frames->stream = (header & 0x7fffff) << 8 | last;
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
		frames->size = frames->cut = 0;
		frames->open = 1;
		frames->of_open = frames->type;
		frames->ends = frames->type == FIELDS && frames->flags & END_STREAM;
		if (!sends && frames->type == FIELDS && frames->stream & 1)
			begin_stream(walk, connection, frames->stream);
	}
	return true;
}

/* Takes some of a frame's header. False where it cannot be read, or is of no frame. */
static __always_inline bool header_bytes(struct walk *walk, struct connection *connection,
					 struct frames *frames, bool sends)
{
	struct parser *parser = &frames->parser;
	__u32 offset;
	int byte;

	if (!look(walk))
		return false;
	offset = walk->at - walk->loaded_at;
	if (!parser->length && offset <= WINDOW - FRAME_HEADER && offset + FRAME_HEADER <= walk->loaded) {
		walk->at += FRAME_HEADER;
		return frame_begins(walk, connection, frames, *(__u64 *)(walk->window + offset),
				    walk->window[offset + 8], sends);
	}
	byte = byte_at(walk, parser);
	if (byte < 0)
		return false;
	if (parser->length < FRAME_HEADER)
		parser->line[parser->length] = byte;
	if (++parser->length < FRAME_HEADER)
		return true;
	return frame_begins(walk, connection, frames, parser->words[0], parser->line[8], sends);
}

static __always_inline bool content_bytes(struct course *course, struct frames *frames, bool sends)
{
	struct walk *walk = course->walk;
	__u64 size = here(walk, &frames->parser);

	if (frames->type == DATA)
		return data_bytes(course, frames, size, sends);
	if (frames->type == FIELDS || frames->type == CONTINUATION || frames->type == PROMISE)
		return fields_bytes(walk, frames, size, sends);
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

/* One step through frames, of which there is some more; 1 ends the walk. */
static __always_inline long frame_step(struct course *course, struct frames *frames, bool sends)
{
	struct connection *connection = course->connection;
	struct walk *walk = course->walk;
	bool followed = true;

	if (!frames->inside)
		followed = header_bytes(walk, connection, frames, sends);
	else if (frames->padded)
		followed = padding_bytes(walk, frames);
	else if (frames->skipped)
		pass(walk, &frames->skipped);
	else if (!frames->parser.left)
		pass(walk, &frames->padding);
	if (followed && frames->inside && !frames->padded && !frames->skipped) {
		if (frames->parser.left && walk->at < walk->size)
			followed = content_bytes(course, frames, sends);
		if (followed && !frames->parser.left && !frames->padding)
			frame_ends(walk, connection, frames, sends);
	}
	walk->failed = !followed;
	return walk->failed || walk->at >= walk->size ? 1 : 0;
}

static long read_step(__u32 index, struct course *course)
{
	return frame_step(course, &course->connection->frames_read, false);
}

static long sent_step(__u32 index, struct course *course)
{
	return frame_step(course, &course->connection->frames_sent, true);
}

CHECKED_ONCE int read_frames(struct connection *connection)
{
	struct course course = {.connection = connection};

	if (!connection)
		return 0;
	course.walk = &connection->reads;
	bpf_loop(MOST_STEPS, read_step, &course, 0);
	return 0;
}

CHECKED_ONCE int sent_frames(struct connection *connection)
{
	struct course course = {.connection = connection};

	if (!connection)
		return 0;
	course.walk = &connection->sends;
	bpf_loop(MOST_STEPS, sent_step, &course, 0);
	return 0;
}

/* Begins to follow a connection by HTTP/2: at its first bytes the client's preface is on its way. False (and counted)
 * where there is no room. */
static __always_inline bool begin_frames(struct connection *connection, __u64 key)
{
	struct frames *frames = &connection->frames_read;

	if (!lookup_or_init(http2_connections, &key, &no_http2))
		return false;
	connection->http2_id = __sync_fetch_and_add(&http2_begun, 1) + 1;
	frames->inside = 1;
	frames->type = SETTINGS;
	frames->parser.left = connection->http2 == UPGRADED ? PREFACE : REST_OF_PREFACE;
	if (connection->http2 == UPGRADED)
		upgraded(connection, key);
	return true;
}

/* Follows what is left of a piece of what was read or sent. */
static __always_inline void follow_frames(struct connection *connection, struct walk *walk, bool sends)
{
	if (!connection->http2_id && !begin_frames(connection, walk->key))
		walk->failed = 1;
	else if (walk->at < walk->size && sends)
		sent_frames(connection);
	else if (walk->at < walk->size)
		read_frames(connection);
}
