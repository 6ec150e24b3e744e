/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Follows the messages of HTTP/1.1 on a connection, byte by byte but for bodies. */
#pragma once
#include "events.h"

/* Bytes of heads, sizes of chunks and events before the first token that one call is followed through. */
#define MOST_STEPS 16384

/* What one call read or sent. */
struct walk {
	struct connection *connection;
	__u64 now;
	__u64 arrived; /* 0 where it is not known */
	__u64 iov;
	__u64 left; /* bytes of the call in further pieces */
	__u64 base; /* of this piece; 0 where it cannot be read */
	__u32 size;
	__u32 at;
	__u32 window; /* where the bytes in the parser's window begin, */
	__u32 loaded; /* and how many they are */
	__u32 kept;   /* up to where the piece is in the tail */
	__u32 failed;
};

static __always_inline int byte_at(struct walk *walk, struct parser *parser)
{
	__u32 offset = walk->at - walk->window, size = walk->size - walk->at;

	if (offset >= walk->loaded) {
		if (size > WINDOW)
			size = WINDOW;
		if (!walk->base || bpf_probe_read_user(parser->window, size, (void *)(walk->base + walk->at)))
			return -1;
		walk->window = walk->at;
		walk->loaded = size;
		offset = 0;
	}
	walk->at++;
	parser->bytes++;
	return (__u8)parser->window[offset & (WINDOW - 1)];
}

/* Keeps the end of an answer, up to here. */
static __always_inline void keep_tail(struct walk *walk, struct request *out)
{
	__u32 at = out->tail_at & (TAIL - 1), size = walk->at - walk->kept;

	if (walk->kept >= walk->at)
		return;
	if (size > TAIL)
		size = TAIL;
	if (walk->base &&
	    !bpf_probe_read_user(out->tail + at, size, (void *)(walk->base + walk->at - size))) {
		at += size;
		if (at >= TAIL) {
			out->tail_end = at;
			at = 0;
		} else if (at > out->tail_end) {
			out->tail_end = at;
		}
		out->tail_at = at;
	}
	walk->kept = walk->at;
}

static __always_inline void keep_line(struct parser *parser, __u8 byte)
{
	if (byte == ' ' || byte == '\t')
		return;
	if (byte >= 'A' && byte <= 'Z')
		byte |= 0x20;
	if (parser->length < sizeof(parser->line))
		parser->line[parser->length] = byte;
	parser->length++;
}

static __always_inline void forget_line(struct parser *parser)
{
	parser->length = 0;
	parser->recent = 0;
	for (int i = 0; i < WORDS; i++)
		parser->words[i] = 0;
}

static __always_inline void begin_message(struct parser *parser)
{
	forget_line(parser);
	parser->bytes = parser->left = 0;
	parser->chunked = parser->has_length = 0;
	parser->state = FIRST_LINE;
}

/* A line of a head, which may have the length of the body. */
static __always_inline void header(struct parser *parser)
{
	if (BEGINS(parser->words[0], "content-") && BEGINS(parser->words[1], "length:")) {
		parser->left = 0;
		parser->has_length = 1;
		for (int i = 15; i < 34; i++) {
			__u8 digit = parser->line[i] - '0';

			if (digit > 9)
				break;
			parser->left = parser->left * 10 + digit;
		}
	} else if (BEGINS(parser->words[0], "transfer") && BEGINS(parser->words[1], "-encodin") &&
		   BEGINS(parser->words[2], "g:")) {
		parser->chunked = 1;
	}
}

static __always_inline void chunk_size(struct parser *parser, __u8 byte)
{
	__u8 digit = byte >= '0' && byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10;

	if (digit > 15 || parser->extension)
		parser->extension = 1;
	else
		parser->left = parser->left << 4 | digit;
}

/* The lines of a chunked body. True at the end of the body. */
static __always_inline bool chunk_line(struct parser *parser, __u8 byte)
{
	switch (parser->state) {
	case CHUNK_SIZE:
		if (byte == '\n') {
			parser->state = parser->left ? CHUNK : TRAILER;
			parser->length = 0;
		} else if (byte != '\r') {
			chunk_size(parser, byte);
		}
		return false;
	case CHUNK_END:
		if (byte == '\n') {
			parser->state = CHUNK_SIZE;
			parser->left = parser->extension = 0;
		}
		return false;
	default:
		if (byte == '\n') {
			if (!parser->length)
				return true;
			parser->length = 0;
		} else if (byte != '\r') {
			parser->length++;
		}
		return false;
	}
}

/* Takes bytes of a body. */
static __always_inline void skip(struct walk *walk, struct parser *parser, __u64 size)
{
	walk->at += size;
	parser->bytes += size;
	if (parser->state != UNTIL_CLOSE)
		parser->left -= size;
}

/* How many bytes of the body are in this piece. */
static __always_inline __u64 here(struct walk *walk, struct parser *parser)
{
	__u64 size = walk->size - walk->at;

	return parser->state == UNTIL_CLOSE || size < parser->left ? size : parser->left;
}
