/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is kept of a connection of HTTP/2 (RFC 9113) and of its streams. Fields are left compressed: user space gets
 * each block of them, and decodes it. */
#pragma once
#include "http.h"

#define MOST_HTTP2 4096	   /* connections */
#define MOST_STREAMS 16384 /* of all connections */
#define MOST_OPEN 256	   /* of one connection; a power of two */
#define BLOCK 4096	   /* bytes of a block of fields that are kept; a power of two */
#define PART 512	   /* of them that are copied at once; a power of two */

enum frame { DATA, FIELDS, PRIORITY, RESET, SETTINGS, PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, END_FIELDS = 4, PADDED = 8, PRIORITIZED = 32 };

/* A block of fields: of a request, of its answer, or of the trailers of one; or that a connection has ended. */
struct fields {
	__u32 kind;
	__u32 stream;
	__u64 connection;
	__u32 order; /* of the blocks of this direction */
	__u16 size;
	__u16 cut; /* it was longer */
	char block[BLOCK + PART];
};

union record {
	struct request request;
	struct fields fields;
};

/* One direction of a connection. `parser.left` are the bytes of the frame's content to come, which is behind the
 * length of the padding and what is skipped, and before the padding. */
struct frames {
	struct parser parser;
	struct fields fields;
	struct walk walk; /* of the call that is followed: older kernels have no room for it on the stack */
	__u32 stream;
	__u32 blocks;
	__u32 skipped;
	__u32 padding;
	__u32 last; /* stream that a GOAWAY names */
	__u8 type;
	__u8 flags;
	__u8 padded;  /* the length of the padding is to come */
	__u8 inside;  /* a frame */
	__u8 open;    /* a block of fields, */
	__u8 of_open; /* which a frame of this type began, */
	__u8 ends;    /* and which ends its direction of the stream */
	__u8 gathered;
	__u8 unused[4];
};

struct http2 {
	struct frames reading;
	struct frames writing;
	__u64 id;
	__u32 newest;		/* stream of the client */
	__u32 tgid;		/* process that reads */
	__u32 slots[MOST_OPEN]; /* the streams that are open, 0 where there is none */
};

struct stream_key {
	__u64 connection; /* the socket's address */
	__u32 id;
	__u32 unused;
};

/* What an answer's body begins with. */
enum body { NOTHING_SENT, AN_EVENT, A_LINE, A_MESSAGE, ANYTHING };

struct stream {
	struct event event;
	struct request out;
	__u32 left;   /* bytes of gRPC's message to come */
	__u32 prefix; /* bytes of its prefix that were sent */
	__u32 slot;
	__u32 open;
	__u32 body;
	__u32 unused;
};
