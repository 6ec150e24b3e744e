/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Server-sent events: which has the first token, and when each was sent. */
#pragma once
#include "serving.h"

CHECKED_ONCE int event_sent(struct request *out, __u64 now)
{
	if (!out)
		return 0;
	if (out->last && now > out->last) {
		out->gaps[duration_slot(now - out->last, GAP_FIRST, GAP_SLOTS)]++;
		out->gap_ns += now - out->last;
	}
	out->last = now;
	return 0;
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

/* Some bytes of a stream that has sent its first token: an event is over where they end with an empty line.
 * `word` are the first eight of them if they are known, else 0. */
static __always_inline bool event_bytes(struct event *event, struct request *out, __u64 from, __u64 size,
					__u64 now, __u64 word)
{
	__u32 few = at_most(size, 4), last = 0;

	if (event->fresh) {
		if (!word && bpf_probe_read_user(&word, at_most(size, 8), (void *)from))
			return false;
		event->ignored = BEGINS(word, ":") || BEGINS(word, "data: [D") || BEGINS(word, "data:[DO");
		event->fresh = 0;
	}
	if (bpf_probe_read_user(&last, few, (void *)(from + size - few)))
		return false;
	if (few < 4)
		last = event->last_bytes >> 8 * few | last << (32 - 8 * few);
	event->last_bytes = last;
	if ((out->flags & LINES && last >> 24 == '\n') || last >> 16 == 0x0a0a || last == 0x0a0d0a0d ||
	    last >> 16 == 0x0d0d) {
		if (!event->ignored)
			event_sent(out, now);
		event->fresh = 1;
	}
	return true;
}
