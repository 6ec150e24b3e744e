/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Server-sent events: which has the first token, and when each was sent. */
#pragma once
#include "http.h"

static __always_inline void event_sent(struct request *out, __u64 now)
{
	if (out->last && now > out->last) {
		out->gaps[duration_slot(now - out->last, GAP_FIRST, GAP_SLOTS)]++;
		out->gap_ns += now - out->last;
	}
	out->last = now;
}

/* Names of events that servers send before there is a token: those of Anthropic's Messages and OpenAI's Responses. */
static __always_inline bool before_tokens(struct event *event)
{
	__u64 name = event->words[0] >> 48 | event->words[1] << 16;
	__u64 more = event->words[1] >> 48 | event->words[2] << 16;

	if ((name & 0xff) == ' ') {
		name = name >> 8 | more << 56;
		more >>= 8;
	}
	if (BEGINS(name, "response"))
		return event->recent >> 16 != WORD(".delta");
	return BEGINS(name, "message_") || BEGINS(name, "ping") ||
	       (BEGINS(name, "content_") && BEGINS(more, "block_s"));
}

static __always_inline void event_line(struct event *event, struct request *out)
{
	__u64 word;
	bool failed = false;

	if (BEGINS(event->words[0], "\xef\xbb\xbf")) { /* a byte order mark, before the first one */
		event->words[0] = event->words[0] >> 24 | event->words[1] << 40;
		event->words[1] = event->words[1] >> 24 | event->words[2] << 40;
		event->words[2] = event->words[2] >> 24 | event->words[3] << 40;
	}
	word = event->words[0];
	if (BEGINS(word, "event:")) {
		event->preamble = before_tokens(event);
		failed = BEGINS(word, "event: e") && BEGINS(event->words[1], "rror");
	} else if (BEGINS(word, "data:")) {
		event->data = 1;
		if (BEGINS(word, "data: [D") || BEGINS(word, "data:[DO"))
			event->ignored = 1;
		failed = (BEGINS(word, "data: {\"") && BEGINS(event->words[1], "error\":")) ||
			 (BEGINS(word, "data:{\"e") && BEGINS(event->words[1], "rror\":"));
	} else {
		failed = BEGINS(word, "error:"); /* llama.cpp's */
	}
	if (failed) {
		event->ignored = 1;
		out->flags |= FAILED_IN_STREAM;
	}
}

/* The end of a line of JSON, which is an event. */
static __always_inline void line_sent(struct event *event, struct request *out, __u64 now)
{
	if (BEGINS(event->words[0], "{\"error\""))
		out->flags |= FAILED_IN_STREAM;
	else
		out->first = out->last = now;
}

/* One byte of a stream that has sent no token yet. */
CHECKED_ONCE int event_byte(struct event *event, struct request *out, __u8 byte, __u64 now)
{
	if (!event || !out || byte == '\r')
		return 0;
	if (byte != '\n') {
		if (event->length < sizeof(event->line))
			event->line[event->length & (sizeof(event->line) - 1)] = byte;
		event->length++;
		event->recent = event->recent >> 8 | (__u64)byte << 56;
		return 0;
	}
	if (out->flags & LINES) {
		if (event->length)
			line_sent(event, out, now);
		event->fresh = 1;
	} else if (event->length) {
		event_line(event, out);
	} else {
		if (event->data && !event->preamble && !event->ignored)
			out->first = out->last = now;
		event->preamble = event->data = event->ignored = 0;
		event->fresh = 1;
	}
	event->length = 0;
	event->words[0] = event->words[1] = event->words[2] = event->words[3] = 0;
	return 0;
}

/* The last four bytes of these from here on, which may be fewer: then the earlier ones are before them. False where they
 * cannot be read. */
static __always_inline bool last_bytes(struct walk *walk, __u64 size, __u32 *last)
{
	__u32 few = at_most(size, 4), offset = walk->at + size - 4 - walk->loaded_at, bytes = 0;

	if (size >= 4 && offset <= WINDOW - 4 && offset + 4 <= walk->loaded) {
		*last = *(__u32 *)(walk->window + offset);
		return true;
	}
	if (bpf_probe_read_user(&bytes, few, (void *)(walk->base + walk->at + size - few)))
		return false;
	*last = few < 4 ? *last >> 8 * few | bytes << (32 - 8 * few) : bytes;
	return true;
}

/* Takes the first eight bytes of an event, which may come in several pieces. False where they cannot be read. */
static __always_inline bool event_begins(struct walk *walk, struct event *event, __u64 size)
{
	__u64 word = 0;
	__u32 known, few;

	if (event->fresh) {
		event->fresh = event->length = 0;
		event->words[0] = 0;
	}
	known = event->length;
	if (known >= 8)
		return true;
	few = at_most(size, 8 - known);
	word = few < 8 ? 0 : next_word(walk);
	if (!word && bpf_probe_read_user(&word, at_most(few, 8), (void *)(walk->base + walk->at)))
		return false;
	word = event->words[0] | word << 8 * known;
	event->words[0] = word;
	event->length = known + few;
	event->ignored = BEGINS(word, ":") || BEGINS(word, "data: [D") || BEGINS(word, "data:[DO");
	return true;
}

/* How many bytes of the window are before the next end of a line, in eights; 1 if that is near. */
CHECKED_ONCE __u32 line_bytes_here(struct walk *walk)
{
	__u32 offset, end;
	__u64 word;

	if (!walk)
		return 1;
	offset = end = walk->at - walk->loaded_at;
	for (int i = 0; i < WINDOW / 8; i++, end += 8) {
		barrier_var(end); /* so that it is what the verifier sees compared */
		if (end > WINDOW - 8 || end + 8 > walk->loaded)
			break;
		word = *(__u64 *)(walk->window + end);
		if (has_byte(word, '\n') || has_byte(word, '\r'))
			break;
	}
	return end > offset ? end - offset : 1;
}

/* Whether an event ends with the newest of these four bytes. */
static __always_inline bool is_end(__u32 last, bool lines)
{
	return (lines && last >> 24 == '\n') || last >> 16 == 0x0a0a || last == 0x0a0d0a0d ||
	       last >> 16 == 0x0d0d;
}

/* A search for the last event that ends among the bytes of a window. Small: Linux 6.1 has little stack for this. */
struct last_end {
	struct walk *walk;
	__u16 from;  /* place of the first byte, */
	__s16 at;    /* and of a word */
	__u16 found; /* place behind the event; 0: none yet */
	__u16 lines; /* of JSON */
};

/* One step of it, through five places; 1 ends it. */
static long end_step(__u32 index, struct last_end *search)
{
	__s32 at = search->at;
	__u64 word;

	if (at < 0 || at > WINDOW - 8 || at < search->from)
		return 1;
	word = *(__u64 *)(search->walk->window + at);
	search->at = at - 5;
	if (!has_byte(word | 0xffffff, '\n'))
		return 0;
#pragma clang loop unroll(full)
	for (int byte = 0; byte < 5; byte++) {
		if (is_end(word >> 32, search->lines)) {
			search->found = at + 8 - byte;
			return 1;
		}
		word <<= 8;
	}
	return 0;
}

/* How many of these bytes, with which no event ends, are up to the end of the last one that ends there: 0 if that is not
 * among the last bytes. */
CHECKED_ONCE __u32 last_end(struct walk *walk, struct event *event, struct request *out, __u32 size)
{
	struct last_end search = {};
	__u32 few = at_most(size, WINDOW), last, from;

	if (!walk || !event || !out)
		return 0;
	search.walk = walk;
	search.lines = !!(out->flags & LINES);
	from = walk->at + size - few - walk->loaded_at;
	if (from >= WINDOW || from + few > walk->loaded) {
		from = 0;
		walk->loaded_at = walk->at + size - few;
		walk->loaded = few;
		if (bpf_probe_read_user(walk->window, few, (void *)(walk->base + walk->loaded_at)))
			return walk->loaded = 0;
	}
	search.from = from;
	search.at = from + few - 8;
	bpf_loop(WINDOW / 5, end_step, &search, 0);
	if (search.found)
		return search.found - search.from + size - few;
	if (few < size)
		return 0;
	last = event->last_bytes;
	for (__u32 i = 0; i < 7 && i < size; i++) { /* those in front of which are earlier ones */
		last = last >> 8 | (__u32)(__u8)walk->window[(search.from + i) & (WINDOW - 1)] << 24;
		if (is_end(last, search.lines))
			search.found = i + 1;
	}
	return search.found;
}

/* Takes some of the next bytes of a stream that has sent its first token, and returns how many: an event is over where
 * they end with an empty line. Few at once of what is no event, as one may follow in the same piece. 0 where they cannot be
 * read. */
static __always_inline __u64 event_bytes(struct walk *walk, struct event *event, struct request *out,
					 __u64 size)
{
	__u64 now = walk->now;
	__u32 last, few;

	if (!look(walk) || !event_begins(walk, event, size))
		return 0;
	if (event->ignored)
		size = at_most(size, line_bytes_here(walk));
	last = event->last_bytes;
	if (!last_bytes(walk, size, &last))
		return 0;
	if (!is_end(last, out->flags & LINES) && !event->ignored) {
		few = last_end(walk, event, out, size);
		if (few) {
			size = few;
			last = '\n' << 24 | '\n' << 16;
		}
	}
	event->last_bytes = last;
	if (is_end(last, out->flags & LINES)) {
		if (!event->ignored)
			event_sent(out, now);
		event->fresh = 1;
	}
	return size;
}
