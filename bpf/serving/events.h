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
	__u64 word = event->words[0];
	bool failed = false;

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

/* Some bytes of a stream that has sent its first token: an event is over where they end with an empty line. */
static __always_inline bool event_bytes(struct walk *walk, struct event *event, struct request *out,
					__u64 size)
{
	__u64 word = 0, now = walk->now;
	__u32 last;

	if (!look(walk))
		return false;
	if (event->fresh) {
		word = size < 8 ? 0 : next_word(walk);
		if (!word && bpf_probe_read_user(&word, at_most(size, 8), (void *)(walk->base + walk->at)))
			return false;
		event->ignored = BEGINS(word, ":") || BEGINS(word, "data: [D") || BEGINS(word, "data:[DO");
		event->fresh = 0;
	}
	last = event->last_bytes;
	if (!last_bytes(walk, size, &last))
		return false;
	event->last_bytes = last;
	if ((out->flags & LINES && last >> 24 == '\n') || last >> 16 == 0x0a0a || last == 0x0a0d0a0d ||
	    last >> 16 == 0x0d0d) {
		if (!event->ignored)
			event_sent(out, now);
		event->fresh = 1;
	}
	return true;
}
