/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is kept of a connection of an HTTP server, and the record of one request that user space gets. */
#pragma once
#include "kernel.h"

#define MOST_CONNECTIONS 16384
#define MOST_PROCESSES 16384
#define CANDIDATES 8192 /* a power of two */
#define MOST_PENDING 64 /* requests that a client may send ahead of their answers; a power of two */
#define LINE 128	/* bytes of a request line that are kept; a power of two */
/* Bytes of an answer's body that are kept: of its beginning (of an event stream twice as many) and of its end; powers of two. */
#define BEGIN 256
#define TAIL 512
#define WINDOW 512	/* bytes that are read at once; a power of two */
#define TRACEPARENT 56	/* 55 bytes and a zero */
#define WORDS 9		/* of a header's line */
#define GAP_FIRST (-12) /* 2^-12 s: 0.24 ms */
#define GAP_SLOTS 30	/* up to 2^16 s, and more */

/* How a request ended. */
enum outcome {
	COMPLETE = 1,
	CLIENT_GONE,
	SERVER_GONE,  /* the process that was to answer ended */
	UNTERMINATED, /* the server closed the connection before the end of its answer */
	UNREADABLE,   /* its bytes could not be followed to the end */
	OF_UNKNOWN,   /* its TLS connection was freed first, and the socket under it is not known */
};

/* LINES: a stream of JSON texts, one a line (Ollama's), which are its events; MESSAGES: of gRPC's messages. */
enum { EVENT_STREAM = 1, ENCODED = 2, QUEUE_KNOWN = 4, FAILED_IN_STREAM = 8, LINES = 16, MESSAGES = 32 };

#define NO_NUMBER 1000 /* as status of an answer */

/* What a record for user space is; the others are of HTTP/2 (http2.h). */
enum kind { REQUEST, REQUEST_FIELDS, ANSWER_FIELDS, CONNECTION_ENDED };

/* One request and its answer. Times are CLOCK_MONOTONIC in nanoseconds, 0 where there is none. */
struct request {
	__u32 kind;
	__u32 stream; /* of an HTTP/2 connection, else 0 */
	__u64 connection;
	__u64 start;
	__u64 queue_ns; /* from the arrival of its first byte to the read that took it */
	__u64 first;	/* the first event that may have a token was sent */
	__u64 last;	/* the last event was */
	__u64 end;
	__u64 request_bytes;
	__u64 response_bytes;
	__u64 gap_ns; /* sum of the gaps in `gaps` */
	__u32 gaps[GAP_SLOTS];
	__u32 tgid;
	__u32 messages; /* of gRPC that were sent */
	__u32 begin_size;
	__u32 tid;	/* the thread that read its beginning and sent its end, 0 if that was not one */
	__u16 tail_at;	/* where the next byte goes: what is before it is newest, */
	__u16 tail_end; /* and from it to here older */
	__u16 status;
	__u8 outcome;
	__u8 flags;
	char traceparent[TRACEPARENT];
	char line[LINE];
	char begin[2 * BEGIN];
	char tail[2 * TAIL];
};

/* A request that has been read. */
struct pending {
	__u64 start;
	__u64 queue_ns;
	__u64 bytes;
	__u8 flags;
	__u8 post;    /* only these are counted */
	__u8 head;    /* its answer has no body */
	__u8 upgrade; /* to HTTP/2 */
	__u32 tid;    /* the thread that read its beginning */
	union {
		char line[LINE];
		__u64 word;
	};
};

/* Where a direction of a connection is in its messages; the states of bodies are last. */
enum state { START, FIRST_LINE, HEADERS, CHUNK_SIZE, CHUNK_END, TRAILER, BODY, CHUNK, UNTIL_CLOSE };

struct parser {
	__u64 left;   /* bytes of the body, or of the chunk, to come */
	__u64 bytes;  /* of this message */
	__u64 recent; /* the last eight bytes of the line, the newest in the highest byte */
	union {
		__u64 words[WORDS]; /* the line in lower case, without blanks */
		char line[WORDS * 8];
	};
	__u32 length; /* of the line */
	__u8 state;
	__u8 chunked;
	__u8 has_length;
	__u8 extension; /* of a chunk's size */
	__u8 ended;	/* the line has, unless the next one continues it */
	__u8 unused[7];
};

/* One direction of a connection of HTTP/2. `parser.left` are the bytes of the frame's content to come, which is behind the
 * length of the padding and what is skipped, and before the padding. */
struct frames {
	struct parser parser;
	__u32 stream;
	__u32 blocks; /* of fields */
	__u32 skipped;
	__u32 padding;
	__u32 last; /* stream that a GOAWAY names */
	__u16 size; /* of the block of fields that is kept, */
	__u8 cut;   /* which was longer */
	__u8 type;
	__u8 flags;
	__u8 padded;  /* the length of the padding is to come */
	__u8 inside;  /* a frame */
	__u8 open;    /* a block of fields, */
	__u8 of_open; /* which a frame of this type began, */
	__u8 ends;    /* and which ends its direction of the stream */
	__u8 gathered;
	__u8 unused;
};

/* The event of a stream that is being sent. */
struct event {
	union {
		__u64 words[4]; /* its line, until the first token */
		char line[32];
	};
	__u64 recent;
	__u32 length;
	__u32 last_bytes; /* of the stream, the newest in the highest byte */
	__u8 preamble;	  /* it has a name of events that come before tokens */
	__u8 data;
	__u8 ignored; /* a comment, [DONE] or an error */
	__u8 fresh;   /* the next byte begins another one */
	__u8 unused[4];
};

/* The W3C trace context of the request that was read last, and which one that was. */
struct trace {
	__u32 of;
	__u32 known;
	char parent[TRACEPARENT];
};

/* What one call read or sent. In memory, where the verifier follows no numbers. */
struct walk {
	__u64 key; /* of the connection */
	__u64 now;
	__u64 arrived; /* 0 where it is not known */
	__u64 iov;
	__u64 base;	/* of this piece; 0 where it cannot be read */
	__u32 left;	/* bytes of the call in further pieces */
	__u32 sequence; /* of TCP, of this piece's first byte */
	__u32 size;
	__u32 at;
	__u32 loaded_at; /* where the bytes in the window begin, */
	__u32 loaded;	 /* and how many they are */
	__u32 kept;	 /* up to where the piece is in the tail */
	__u16 failed;
	__u16 in_kernel;  /* `iov` is */
	__u64 vector;	  /* messages of a call with several, */
	__u32 moved;	  /* of which it has moved so many, */
	__u32 moved_size; /* the last one with so many bytes */
	__u32 moved_by;	  /* thread */
	__u32 unused;
	char window[WINDOW];
};

struct connection {
	struct parser reading;
	struct parser writing;
	struct walk reads; /* the call that is followed */
	struct walk sends;
	struct frames frames_read;
	struct frames frames_sent;
	struct event event;
	struct trace trace;
	struct pending pending[MOST_PENDING];
	struct request out;
	__u64 inode;	  /* of a Unix socket: the next one may have its address, and its end was not seen */
	__u64 tls_socket; /* of which its end is known; only under TLS, else 0 */
	__u64 http2_id;	  /* 0 until its first frame */
	__u32 newest;	  /* stream of the client of HTTP/2 */
	__u32 tgid;
	__u32 received; /* requests that were read, */
	__u32 answered; /* and answered, */
	__u32 answering;
	__u32 client_closed; /* enum client_closed */
	__u8 swept;	     /* its end may not be seen when its process ends */
	__u8 http2;	     /* enum preface */
	__u8 unused[6];
};

/* How a connection became one of HTTP/2, or of another protocol, which is not followed. */
enum preface { NO_PREFACE, PRIOR_KNOWLEDGE, UPGRADED, OTHER_PROTOCOL };

/* When the client closed its side. Before the answer it may still read. */
enum client_closed { NOT_CLOSED, DURING_ANSWER, BEFORE_ANSWER };

/* The first eight bytes of a text. */
#define BYTE_(text, i) ((__u64)(__u8)(text "\0\0\0\0\0\0\0\0")[i] << 8 * (i))
#define WORD(text)                                                                                           \
	(BYTE_(text, 0) | BYTE_(text, 1) | BYTE_(text, 2) | BYTE_(text, 3) | BYTE_(text, 4) |                \
	 BYTE_(text, 5) | BYTE_(text, 6) | BYTE_(text, 7))
/* Whether a word begins with a text. */
#define BEGINS(word, text) (!(((word) ^ WORD(text)) << 8 * (9 - sizeof(text))))

/* The smaller one. Compared again where the compiler cannot see it, so that the verifier does: older ones lose what they
 * knew of a number when it is copied. */
static __always_inline __u32 at_most(__u64 size, __u32 most)
{
	__u32 bounded = size < most ? size : most;

	asm volatile("" : "+r"(bounded));
	return bounded > most ? most : bounded;
}
