/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is kept of each queue pair: how its process set it up, which of its requests are outstanding, what it posted. */
#pragma once
#include "probe.h"

/* Those of which each process has a share: it may make up any number of queue pairs, devices and regions, with a library
 * of its own and no adapter. `queues` and `receives` have none, since only latencies are lost where they are full. */
enum table {
	table_qp_controls,
	table_qp_states,
	table_regions,
	table_region_totals,
	table_calls,
	table_posted,
	table_extended_posts,
	table_contexts,
	table_completions,
	table_times,
	TABLES
};
ENDED()
#include "shares.h"

struct verbs_device {
	char name[64]; /* as in /sys/class/infiniband */
};

struct control_key {
	__u32 tgid;
	__u32 zero;
	__u64 address; /* of the struct ibv_qp or ibv_mr */
};

/* A QP as its process set it up. Attributes count only if their bit is in `known`. */
struct qp_control {
	struct verbs_device device;
	__u64 created_ns; /* 0: it was there before its process was observed */
	__u64 changed_ns; /* when its state was last seen */
	__u32 number;
	__u32 type;  /* enum ibv_qp_type */
	__u32 state; /* enum ibv_qp_state */
	__u32 known; /* enum ibv_qp_attr_mask: what was set since it was last reset */
	__u32 peer;
	__u32 send_psn; /* the first packet's number, as the peer's receive_psn */
	__u32 receive_psn;
	__u32 resets;  /* after something was set: messages are counted from 0 again */
	__u16 lid;     /* the peer's, on InfiniBand */
	__u8 path_mtu; /* enum ibv_mtu: 128 << it is bytes */
	__u8 port;
	__u8 peer_gid[16]; /* if `routed` */
	__u8 gid_index;	   /* of its own GID, if `routed` */
	__u8 routed;	   /* the path has GIDs */
	__u8 timeout;	   /* 4.096 us << it, 0 is none */
	__u8 retries;
	__u8 rnr_retries;
	__u8 all_signaled; /* every work request completes, flagged or not: known only if it was seen made */
	__u8 send_missed;  /* there was no room for `queues`: what is outstanding is not known */
	__u8 receive_missed;
	__u8 zero[4];
	__u32 most_sends; /* that can be outstanding; 0 if that was not seen */
	__u32 most_receives;
};
SHARED(qp_controls, struct control_key, struct qp_control, 32768);

struct qp_key {
	__u32 tgid;
	__u32 number;
	__u64 context;
};
/* Numbers of destroyed QPs come again, addresses too. */
struct qp_life {
	struct qp_key qp;
	__u64 created_ns; /* 0: that was not seen */
};

/* A work request that will complete. */
struct request {
	__u64 wr_id;
	__u64 posted_ns;
	__u32 bytes;
	__u8 opcode;
	__u8 lone;     /* posted on an idle QP, no larger than the path's MTU */
	__u16 message; /* of those that the peer receives, the low bits of its number */
};
#define QUEUE 256
#define UNCOUNTED (1ull << 63)

/* The requests of one QP that will complete, in order: from `head` on they are outstanding, if `synced`. */
struct queue {
	__u64 address; /* of the struct ibv_qp */
	__u64 head, tail;
	__u64 quiet; /* the place of the last one posted after a long silence: those before have completed */
	__u64 posted_ns;
	__u64 window;	  /* a time from which on `head` is valid, while every call of poll_cq is observed */
	__u64 created_ns; /* of the QP: another one may have its number and address */
	__u64 messages;	  /* since then, that the peer receives or sent; UNCOUNTED: some were missed */
	__u32 unsignaled; /* posted since the last that will complete */
	__u32 posting;	  /* threads in a call that posts */
	__u32 capacity;	  /* of requests that can be outstanding; 0: not known */
	__u32 library;
	__u64 since; /* as in posts_since, of `library`, at the last call */
	__u8 synced;
	__u8 zero[7];
	struct request requests[QUEUE];
};
MAP(queues, HASH, struct qp_key, struct queue, 2048);
MAP(receives, HASH, struct qp_key, struct queue, 2048);

struct calls {
	__u64 count;
	__u64 opcodes; /* a bit for each that was posted */
};
SHARED(calls, struct qp_life, struct calls, 8192);

#define OTHER_OPCODE 16 /* in place of what enum ibv_wr_opcode does not have */
struct posted_key {
	struct qp_life life;
	__u32 opcode;
	__u32 zero;
};
struct posted {
	__u64 requests;
	__u64 bytes;
	__u64 packets; /* of those with a known MTU */
	__u64 unsized; /* requests without a known MTU */
};
SHARED(posted, struct posted_key, struct posted, 8192);

/* What one call posts. */
struct walk {
	struct qp_life life;
	__u64 next, now;
	__u64 opcodes; /* a bit for each */
	__u32 mtu;
	__u32 capacity; /* requests that can be outstanding */
	__u32 signaled; /* of a call that has returned: of those refused */
	__u32 messages; /* of those refused, or begun */
	__u8 all_signaled;
	__u8 acknowledged; /* by the peer, before they complete */
	__u8 missed;	   /* what was posted before is not known */
	__u8 unread;	   /* some of the chain: who counts messages knows no number any more */
	__u8 zero[4];
};

/* What was begun on a queue pair and not yet posted, or posted last. */
struct extended_post {
	struct walk walk; /* `signaled` requests are behind the queue's tail */
	__u64 bytes;	  /* of the request that is being built */
	__u64 before;	  /* the queue's tail when they were posted */
	__u32 requests;
	__u32 unsignaled; /* since the last that is signaled */
	__u32 opcode;
	__u8 open;     /* between start and complete */
	__u8 building; /* a request to which segments may be added */
	__u8 signaled; /* it is */
	__u8 zero;
	__u32 unsettled; /* what was built is posted or refused, and not counted */
	__u32 zeros;
	struct posted counts[OTHER_OPCODE + 1];
};
SHARED(extended_posts, struct control_key, struct extended_post, 4096);

/* What a QP that was destroyed had posted: a record for its calls, and one for each opcode. Rows that find no room here
 * stay where they are until their process ends. */
#define NO_OPCODE (~0u)
struct qp_end {
	struct qp_life life;
	struct qp_control qp; /* as it was; zeros if that is not known */
	__u64 calls;
	struct posted posted;
	__u32 opcode;
	__u32 zero;
};
EVENTS(qp_ends, struct qp_end, 512 * 1024);

static __always_inline struct qp_end *reserve_end(const struct qp_life *life,
						  const struct qp_control *control)
{
	struct qp_end *end = reserve(qp_ends);

	if (!end)
		return NULL;
	__builtin_memset(end, 0, sizeof(*end));
	end->life = *life;
	end->opcode = NO_OPCODE;
	if (control)
		__builtin_memcpy(&end->qp, control, sizeof(end->qp));
	return end;
}

static __always_inline void send_posted(const struct qp_life *life, const struct qp_control *control,
					__u32 opcode)
{
	struct posted_key key = {.life = *life, .opcode = opcode};
	struct posted *posted_ = bpf_map_lookup_elem(&posted, &key);
	struct qp_end *end = posted_ ? reserve_end(life, control) : NULL;

	if (!end)
		return;
	end->posted = *posted_;
	end->opcode = opcode;
	remove_shared(posted, life->qp.tgid, &key);
	bpf_ringbuf_submit(end, 0);
}

/* Drops requests that end without a completion: the QP was destroyed or reset. */
static __always_inline void drop_requests(const struct qp_life *life)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, &life->qp);
	struct queue *received = bpf_map_lookup_elem(&receives, &life->qp);

	if (queue && queue->created_ns == life->created_ns)
		bpf_map_delete_elem(&queues, &life->qp);
	if (received && received->created_ns == life->created_ns)
		bpf_map_delete_elem(&receives, &life->qp);
}

static __always_inline void end_qp(const struct qp_life *life, const struct qp_control *control)
{
	struct calls *row = bpf_map_lookup_elem(&calls, life);
	struct qp_end *end;

	drop_requests(life);
	if (!row)
		return;
	for (__u32 opcode = 0; opcode <= OTHER_OPCODE; opcode++)
		if (row->opcodes >> opcode & 1)
			send_posted(life, control, opcode);
	end = reserve_end(life, control);
	if (!end)
		return;
	end->calls = row->count;
	remove_shared(calls, life->qp.tgid, life);
	bpf_ringbuf_submit(end, 0);
}
