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

/* What a connection has besides its frames: not needed for data, so that events need no look at this table. */
struct http2 {
	struct fields read;
	struct fields sent;
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
