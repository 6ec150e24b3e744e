/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the NCCL programs share: what a cookie has of the hooked function, and what the maps hold.
 * exporter/nccl/functions.py has the functions; exporter/collectors/nccl.py gives the maps their meaning. */
#pragma once
#include <stddef.h>
#include "thread.h"
#include "linked.h"

/* Functions that may be left out together in a process (exporter/nccl/functions.py): collectives with the groups around
 * them, and Send and Recv. */
enum group { group_collectives, group_messages };

/* What a call is counted as: the part after the underscore is the label's value. The first five are numbered as in
 * ncclFunc_t, by which the library itself counts. */
enum kind {
	kind_Broadcast,
	kind_Reduce,
	kind_AllGather,
	kind_ReduceScatter,
	kind_AllReduce,
	kind_AlltoAll,
	kind_AlltoAllv,
	kind_Gather,
	kind_Scatter,
	kind_Send,
	kind_Recv,
	kind_PutSignal,
	kind_Signal,
	kind_WaitSignal,
	kind_GroupEnd, /* from here on no collectives */
	kind_Init,
	kind_Split,
	kind_Shrink,
	kind_Grow,
	kind_Finalize,
	kind_Revoke,
	kind_Destroy,
	kind_Abort,
	kind_none
} __attribute__((packed));
#define COLLECTIVES kind_GroupEnd
#define CAPTURED 15 /* calls that were recorded in graphs, which the library does not count */
#define NUMBERED 16
#define COUNTED_BY_NCCL 5

/* What a call does. `comm` is the argument with the number comm_at of the cookie. */
enum effect {
	effect_none,
	effect_collective, /* comm, then the stream; count_at, then the type */
	effect_vector,	   /* like it, but count_at is an array of counts and the type is at comm_at - 1 */
	effect_signal,	   /* like it, but without a count */
	effect_group_start,
	effect_group_end,
	effect_group_drop,  /* the group ends, which is only simulated */
	effect_create,	    /* *comm is the new communicator */
	effect_init,	    /* like it, of arg1 ranks; the id follows, then the rank */
	effect_create_many, /* arg0 an array of them, arg1 its length */
	effect_end,	    /* comm */
	effect_async_error, /* comm, *arg1 its error */
	effect_capture_begin,
	effect_capture_end,
} __attribute__((packed));

#define NO_ARGUMENT 255

/* Travels as the uprobe's 64-bit cookie. */
struct cookie {
	__u8 api;     /* which function, counted from 1 */
	__u8 library; /* its number in `returning` */
	enum kind kind;
	enum effect effect;
	__u8 layout; /* of the library: index into `layouts` */
	__u8 count_at;
	__u8 comm_at;
	__u8 peer_at; /* root or peer */
};
RETURNING()

/* Where in a library's struct ncclComm things are; 0 where that is not known. */
struct layout {
	__u32 identity; /* commHash; rank, nRanks and cudaDev follow it */
	__u32 sequence; /* seqNumber, counts of the first five kinds */
	__u32 guarded;	/* begins with NCCL_MAGIC */
	__u32 hashless; /* something else is in commHash's place: before 2.18 */
};
MAP(layouts, ARRAY, __u32, struct layout, 256);
#define NCCL_MAGIC 0x0280028002800280ull /* comm.h */
#define MOST_RANKS 1000000

struct identity {
	__u64 hash;
	__s32 rank;
	__s32 nranks;
	__s32 device; /* as the process numbers them; -1 until it is known */
	__u32 zero;
};

/* From where on a communicator's calls are numbered. */
enum origin {
	origin_unknown, /* from the first call seen */
	origin_library, /* the first five kinds as the library did when it was first seen, the others as before */
	origin_creation, /* from its creation */
} __attribute__((packed));

struct comm_key {
	__u32 tgid;
	__u32 zero;
	__u64 address;
};
struct communicator {
	struct identity who;   /* hash is 0 until it can be read */
	__u64 domain;	       /* of its process, see domain_of_task */
	__u64 since_ns;	       /* distinguishes it from others that were at this address */
	__u64 calls[NUMBERED]; /* by kind */
	__u32 async_error;
	__u32 met;		 /* a bit for each row of `meetings` that it holds */
	__u64 group_ns;		 /* the caller's, of the newest group with calls on it */
	__u32 waiting[NUMBERED]; /* calls of that group, which nobody has started yet */
	enum origin origin;
	__u8 unsure;   /* calls of an open group may be missing from the library's numbers */
	__u8 reused;   /* its process had another one of this hash, rank and size: numbers mean either */
	__u8 unpaired; /* numbers of Send and Recv are not the other rank's */
	__u32 gap;     /* gap_of() its process when its numbers were last good for something */
	__u32 away;    /* those of `met` where nobody is compared, as calls of this rank are missing */
	__u32 zero;
};
#define MOST_COMMUNICATORS 8192
MAP(communicators, HASH, struct comm_key, struct communicator, MOST_COMMUNICATORS);

/* Work of a non-blocking communicator that the library reports as ncclInProgress. */
struct pending {
	__u64 start_ns;	 /* of the call, or of the first poll seen */
	__u64 polled_ns; /* when the library last reported it; 0: not polled yet */
	__u32 api;	 /* the call */
	__u32 zero;
};
#define MOST_PENDING 4096
MAP(pending, HASH, struct comm_key, struct pending, MOST_PENDING);

/* Calls between this rank and another, Send and Recv apart. */
struct peer_key {
	__u64 since_ns; /* the communicator's */
	__u32 tgid;
	__s32 peer;
	enum kind kind;
	__u8 zero[7];
};
#define MOST_PEERS 65536
MAP(peers, HASH, struct peer_key, __u64, MOST_PEERS);

/* When the first rank of this node called, for the newest calls of a communicator: the time in units of 2^ARRIVAL_SHIFT ns
 * above the 16 lowest bits of the call's number, so that both change at once. A row is there as long as a rank of this
 * node that has called holds it. */
#define ARRIVALS 128
#define ARRIVAL_SHIFT 10
struct meeting_key {
	__u64 hash;
	__u64 domain;
	__u32 nranks;
	enum kind kind; /* 0 for all that NCCL counts */
	__u8 zero[3];
};
struct meeting {
	__u64 refs;
	__u64 from; /* arrivals at lower numbers may be missing */
	__u64 away; /* ranks of which the arrivals are missing at present */
	__u64 arrivals[ARRIVALS];
};
#define MOST_MEETINGS 2048
MAP(meetings, HASH, struct meeting_key, struct meeting, MOST_MEETINGS);

/* The rows of a process, of which it gets at most one in SHARE (held.h): it cannot keep others out. */
#define SHARE 8
struct held {
	__u64 communicators;
	__u64 peers;
	__u64 meetings;
	__u64 lags;
	__u64 errors;
	__u64 callers;
	__u64 pending;
};
MAP(held, HASH, __u32, struct held, 4096);

/* How much later a rank called than the first one. Slot 0 holds up to 2^-14 s (61 us), slot i up to 2^(2*i-14) s, the
 * last one all above 2^16 s. */
#define LAG_FIRST (-14)
#define LAG_SLOTS 17
struct lag_key {
	__u64 hash;
	__u32 tgid;
	__s32 rank;
	__u32 nranks;
	__u32 zero;
};
struct lag {
	__u64 sum_ns;
	__u64 domain;
	__u64 slots[LAG_SLOTS];
};
#define MOST_LAGS 4096
MAP(lags, HASH, struct lag_key, struct lag, MOST_LAGS);

struct call_key {
	__u32 tgid;
	enum kind kind;
	__u8 zero[3];
};
struct calls {
	__u64 calls;
	__u64 bytes;
	__u64 bus_bytes;
	__u64 unsized;	 /* calls with unknown bytes */
	__u64 anonymous; /* calls with a communicator that could not be read */
	__u64 last_ns;
};
MAP(calls, HASH, struct call_key, struct calls, 16384);
MAP(hits, PERCPU_ARRAY, __u32, __u64, 256);    /* by api, of all processes */
MAP(windows, PERCPU_ARRAY, __u32, __u64, 256); /* of these, by on_window */
MAP(window_calls, HASH, struct call_key, __u64, 4096);

MAP(durations, HASH, struct call_key, struct duration, 8192);

#define MOST_ERRORS 4096
MAP(errors, HASH, struct error_key, struct error, MOST_ERRORS);

/* Processes of which every call was seen, entered by the exporter. */
MAP(covered, HASH, __u32, __u8, 4096);
/* Processes that the exporter knows, by how often their collectives began to be left out and ended to be: odd while they
 * are (gaps.h). */
MAP(gaps, HASH, __u32, __u32, 4096);
enum gap_state { gap_none_yet, gap_none_now, gap_open };
/* Whether collectives are left out in a process, now or before; then the number of the newest window. */
MAP(gap_state, ARRAY, __u32, __u32, 2);
ENDED()

struct flight {
	struct cookie cookie;
	__u64 sp; /* 0 when no call is in flight */
	__u64 ip;
	__u64 start_ns;
	__u64 comm;   /* the argument */
	__u64 second; /* the second argument; for effect_create the first */
	__u64 count;
	__u64 stream;
	__s32 type;
	__s32 peer;
	struct identity who; /* of a communicator that this call ends, or makes by an id */
	__u32 returning;     /* of the library, when the call began */
	__u32 zero;
};
#define MOST_GROUPED 16
struct caller {
	__u64 group_ns;	    /* when the outermost open group began: its name among the thread's */
	__u64 group_ticket; /* of the first call in it: they are sampled together */
	__u32 depth;
	__u32 capturing;	     /* streams that the thread captures into graphs */
	struct flight call;	     /* as on_enter saw it begin */
	__u64 grouped[MOST_GROUPED]; /* communicators with calls in the group */
	__u64 many;		     /* how many those are */
	__u64 outer_sp;	    /* of the newest start or end of a group in a library of unknown layout */
	__u64 outer_ip;	    /* of its function */
	__u64 outer_return; /* the address to which it returns */
	__u64 outer_api;
	__u32 gap;	    /* gap_of() the process when `depth` and what belongs to it was last known */
	__u32 window;	    /* in which the thread was last seen */
	__u32 window_depth; /* groups that it began in that window, and has not ended */
	__u32 cut;	    /* it may have begun one before that window */
};
#define MOST_CALLERS 16384
MAP(callers, HASH, struct thread, struct caller, MOST_CALLERS);

/* One call that has returned. */
struct span {
	__u64 start_ns;
	__u64 end_ns;
	__u64 group_ns;	    /* when the outermost group around it began, 0 if there is none */
	__u64 communicator; /* its since_ns: distinguishes communicators of one hash within a process */
	__u64 sequence; /* of calls of this kind on the communicator (Send, Recv: with this peer), from 0 */
	__u64 bytes;
	__u64 stream;
	struct identity who; /* hash 0: not known */
	__u32 tgid;
	__u32 tid;
	__s32 code;
	__s32 type; /* ncclDataType_t, -1 if there is none */
	__s32 peer; /* root or peer, -1 if there is none */
	__u8 api;
	enum kind kind;
	enum origin origin; /* of the sequence */
	__u8 depth;	    /* groups around it, at most 255; of a GroupEnd 0 */
	__u8 captured;
	__u8 partial; /* sent for its length or its error: the other ranks' are not */
	__u8 zero[6];
	char comm[16]; /* the thread's name */
};
EVENTS(nccl_spans, struct span, 1024 * 1024);
__u64 nccl_spans_woken_ns = 0;
__u64 spans_unsampled = 0; /* not sent, nor those of the other ranks, to keep to spans_per_second */
__u64 spans_limited = 0;   /* not sent, because sampling was not enough for that */

const volatile __u64 spans_per_second = 1000; /* 0: nobody takes any */
const volatile __u64 slow_ns = 10000000; /* calls that take so long are sent though they are not sampled */
const volatile bool across_containers = false; /* ranks are compared whoever they belong to */
