/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Follows the messages of HTTP/1.1 on a connection, byte by byte but for bodies. */
#pragma once
#include "serving.h"

/* Bytes of heads, sizes of chunks and events before the first token that one call is followed through. */
#define MOST_STEPS (1 << 17)

/* What is followed. */
struct steps {
	struct walk *walk;
	struct connection *connection;
	__u64 skipped; /* bytes of pieces before those that were moved */
};

/* Has the bytes at this place in the window. False where they cannot be read. */
static __always_inline bool look(struct walk *walk)
{
	__u32 size;

	if (walk->at - walk->loaded_at < walk->loaded)
		return true;
	size = at_most(walk->size - walk->at, WINDOW);
	if (!walk->base || bpf_probe_read_user(walk->window, size, (void *)(walk->base + walk->at)))
		return false;
	walk->loaded_at = walk->at;
	walk->loaded = size;
	return true;
}

static __always_inline int byte_at(struct walk *walk, struct parser *parser)
{
	__u32 offset;

	if (!look(walk))
		return -1;
	offset = walk->at - walk->loaded_at;
	walk->at++;
	parser->bytes++;
	return (__u8)walk->window[offset & (WINDOW - 1)];
}

/* The next eight bytes, 0 where the window has fewer. */
static __always_inline __u64 next_word(struct walk *walk)
{
	__u32 offset = walk->at - walk->loaded_at;

	if (offset > WINDOW - 8 || offset + 8 > walk->loaded)
		return 0;
	return *(__u64 *)(walk->window + offset);
}

/* Whether one of a word's bytes is this one. */
static __always_inline bool has_byte(__u64 word, __u8 byte)
{
	word ^= 0x0101010101010101ull * byte;
	return (word - 0x0101010101010101ull) & ~word & 0x8080808080808080ull;
}

struct words {
	__u64 word[8];
};

/* Copies bytes of the window from this offset on to a place in the tail. Helpers take longer for it. */
CHECKED_ONCE int copy_window(struct walk *walk, struct request *out, __u32 offset, __u32 size)
{
	__u32 at;

	if (!walk || !out || size > TAIL)
		return 0;
	at = out->tail_at & (TAIL - 1);
	for (int i = 0; i < TAIL / 64 && size >= 64; i++) {
		barrier_var(offset); /* so that these are what the verifier sees compared */
		barrier_var(at);
		if (offset > WINDOW - 64 || at > 2 * TAIL - 64)
			return 0;
		*(struct words *)(out->tail + at) = *(struct words *)(walk->window + offset);
		offset += 64;
		at += 64;
		size -= 64;
	}
	for (int i = 0; i < 8 && size >= 8; i++) {
		barrier_var(offset);
		barrier_var(at);
		if (offset > WINDOW - 8 || at > 2 * TAIL - 8)
			return 0;
		*(__u64 *)(out->tail + at) = *(__u64 *)(walk->window + offset);
		offset += 8;
		at += 8;
		size -= 8;
	}
	for (int i = 0; i < 7 && size; i++, size--)
		out->tail[at++ & (2 * TAIL - 1)] = walk->window[offset++ & (WINDOW - 1)];
	return 0;
}

/* Copies bytes of a walk up to its place, which are at most TAIL, to the tail: from the window if they are there. False
 * where they cannot be read. */
static __always_inline bool copy_last(struct walk *walk, struct request *out, __u32 size)
{
	__u32 offset = walk->at - size - walk->loaded_at;

	if (offset < WINDOW && offset + size <= walk->loaded) {
		copy_window(walk, out, offset, size);
		return true;
	}
	return !bpf_probe_read_user(out->tail + (out->tail_at & (TAIL - 1)), size,
				    (void *)(walk->base + walk->at - size));
}

/* Keeps the end of an answer, up to here. */
static __always_inline void keep_end(struct request *out, struct walk *walk)
{
	__u32 at, size;

	size = walk->at - walk->kept;
	if (!walk->base) {
		out->tail_at = out->tail_end = 0;
		return;
	}
	if (size > TAIL) { /* enough, without what was kept before */
		size = at_most(size, 2 * TAIL);
		out->tail_at = 0;
		out->tail_end =
		    bpf_probe_read_user(out->tail, size, (void *)(walk->base + walk->at - size)) ? 0 : size;
		return;
	}
	at = out->tail_at & (TAIL - 1);
	if (!copy_last(walk, out, size)) {
		out->tail_at = out->tail_end = 0;
		return;
	}
	at += size;
	if (at >= TAIL) {
		out->tail_end = at;
		at = 0;
	} else if (at > out->tail_end) {
		out->tail_end = at;
	}
	out->tail_at = at;
}

static __always_inline void keep_tail(struct walk *walk, struct request *out)
{
	if (walk->kept >= walk->at)
		return;
	keep_end(out, walk);
	walk->kept = walk->at;
}

CHECKED_ONCE int keep_line(struct parser *parser, __u8 byte)
{
	if (!parser || ((byte == ' ' || byte == '\t') && parser->length))
		return 0;
	/* The first line of a head is no header if it begins with a blank. */
	if (byte >= 'A' && byte <= 'Z')
		byte |= 0x20;
	if (parser->length < sizeof(parser->line))
		parser->line[parser->length] = byte;
	parser->length++;
	return 0;
}

/* Whether a line of a head that has ended is complete, as the next one begins with this byte: a blank continues it, so that
 * both are one (RFC 9112, 5.2). */
static __always_inline bool is_complete(struct parser *parser, __u8 byte)
{
	bool ended = parser->ended;

	parser->ended = 0;
	return ended && byte != ' ' && byte != '\t';
}

static __always_inline void forget_line(struct parser *parser)
{
	parser->ended = 0;
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
CHECKED_ONCE int header(struct parser *parser)
{
	if (!parser)
		return 0;
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
		   BEGINS(parser->words[2], "g:") && !BEGINS(parser->words[2], "g:identi")) {
		parser->chunked = 1;
	}
	return 0;
}

/* The value of a hexadecimal digit; more than 15 of any other byte. */
static __always_inline __u8 digit_of(__u8 byte)
{
	__u8 letter = byte | 0x20;

	return letter >= 'a' ? letter - 'a' + 10 : (__u8)(byte - '0') > 9 ? 255 : byte - '0';
}

static __always_inline void chunk_size(struct parser *parser, __u8 byte)
{
	__u8 digit = digit_of(byte);

	if (digit > 15 || parser->extension)
		parser->extension = 1;
	else
		parser->left = parser->left << 4 | digit;
}

/* One byte of the lines of a chunked body. True at the end of the body. */
CHECKED_ONCE int chunk_line(struct parser *parser, __u8 byte)
{
	if (!parser || byte == '\r')
		return false;
	if (byte != '\n') {
		if (parser->state == CHUNK_SIZE)
			chunk_size(parser, byte);
		parser->length++;
		return false;
	}
	if (parser->state == TRAILER && !parser->length)
		return true;
	if (parser->state == CHUNK_SIZE)
		parser->state = parser->left ? CHUNK : TRAILER;
	else if (parser->state == CHUNK_END)
		parser->state = CHUNK_SIZE;
	parser->length = parser->extension = 0;
	return false;
}

/* The same of a whole line of a size at once. False where it is not all there, or has more than a size. */
static __always_inline bool size_line(struct walk *walk, struct parser *parser)
{
	__u64 word = look(walk) ? next_word(walk) : 0;
	__u32 digits = 0, size = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < 6; i++) {
		__u8 digit = digit_of(word);

		if (digit > 15)
			break;
		size = size << 4 | digit;
		word >>= 8;
		digits++;
	}
	if (!size || (word & 0xffff) != 0x0a0d)
		return false;
	parser->left = size;
	parser->state = CHUNK;
	parser->bytes += digits + 2;
	walk->at += digits + 2;
	return true;
}

/* The data of a chunk has ended: the end of its line is mostly there, and need not be read. */
static __always_inline void chunk_ends(struct walk *walk, struct parser *parser)
{
	parser->state = CHUNK_END;
	if (walk->size - walk->at >= 2) {
		walk->at += 2;
		parser->bytes += 2;
		parser->state = CHUNK_SIZE;
		parser->length = parser->extension = 0;
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
