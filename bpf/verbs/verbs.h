/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The RDMA data path: what the maps of bpf/verbs/verbs.bpf.c hold, and the structures of infiniband/verbs.h that it reads.
 * exporter/verbs/activity.py gives the maps their meaning. */
#pragma once
#include "spans.h"
#include "learn.bpf.h"
#include "gaps.h"
#include "polls.h"

/* The most that is read of one call; more is counted as unread. */
#define MOST_REQUESTS 64
#define MOST_RECEIVES 256
#define MOST_SEGMENTS 32
#define MOST_COMPLETIONS 64

#define SEND_SIGNALED 2 /* enum ibv_send_flags */
#define OPCODE_WRITE 0	/* enum ibv_wr_opcode */
#define OPCODE_WRITE_WITH_IMM 1
#define OPCODE_SEND 2
#define OPCODE_SEND_WITH_IMM 3
#define OPCODE_READ 4
#define OPCODE_SEND_WITH_INV 9
#define OPCODE_LOCAL_INV 7
#define OPCODE_BIND_MW 8
#define COMPLETED_RECEIVE 128 /* bit of enum ibv_wc_opcode */

struct user_send_wr {
	__u64 wr_id, next, sg_list;
	__u32 num_sge, opcode, send_flags, imm_data;
};
struct user_recv_wr {
	__u64 wr_id, next;
};
struct user_sge {
	__u64 addr;
	__u32 length, lkey;
};
struct user_wc {
	__u64 wr_id;
	__u32 status, opcode, vendor_err, byte_len, imm_data, qp_num;
	__u32 rest[4];
};
_Static_assert(sizeof(struct user_wc) == 48, "struct ibv_wc");

struct context_key {
	__u32 tgid;
	__u32 zero;
	__u64 context;
};
SHARED(contexts, struct context_key, struct verbs_device, 4096);

struct status_key {
	__u32 tgid;
	__u32 status;
	__u64 context;
};
SHARED(completions, struct status_key, __u64, 8192);

enum timed { timed_post_send, timed_poll_cq, timed_request, timed_ack } __attribute__((packed));
struct time_key {
	__u32 tgid;
	__u32 opcode;
	__u64 context;
	enum timed what;
	__u8 zero[7];
};
/* Slot 0 holds up to 2^-22 s (238 ns), slot i up to 2^(i-22) s, the last one all above 2^16 s. */
#define TIME_FIRST (-22)
#define TIME_SLOTS 40
struct time {
	__u64 sum_ns;
	__u64 slots[TIME_SLOTS];
};
SHARED(times, struct time_key, struct time, 8192);

RETURNING()

enum post_kind { post_sends, post_receives, post_extended } __attribute__((packed));
/* The requests of one opcode in a call. */
struct part {
	__u32 opcode, requests;
	__u64 bytes, packets;
};
#define PARTS 2 /* jobs seldom mix more opcodes in one call */
/* A call that posts. What it posts counts when it has returned: only then is it known what was refused. */
struct post_flight {
	__u64 start_ns, sp, qp, first, bad_wr, before, after;
	struct qp_life life;
	struct part parts[PARTS];
	__u32 mtu;
	__u32 taken; /* requests of the chain that were read */
	enum post_kind kind;
	__u8 all_signaled;
	__u8 cut;   /* the chain goes on behind them */
	__u8 mixed; /* there are more opcodes than parts */
	__u8 zero[4];
};
FLIGHTS(post_flights, struct post_flight, 8192)

struct poll_flight {
	__u64 start_ns, sp, cq, wc;
	__u64 call; /* 0: poll_cq; else 1 + enum cq_call */
};
FLIGHTS(poll_flights, struct poll_flight, 8192)
