/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which functions the extended calls (ibv_wr_start, ibv_start_poll and their like) of a process are: its queue pairs and
 * completion queues have pointers to them. exporter/verbs/code/extended.py judges what they are. */
#pragma once
#include "live.bpf.h"

/* struct ibv_qp_ex and ibv_cq_ex, public: they only grow at their end. Before these fields is a pthread_mutex_t. */
#if defined(__TARGET_ARCH_arm64)
#define LONGER_MUTEX 8
#else
#define LONGER_MUTEX 0
#endif
#define QP_EX_WR_ID (168 + LONGER_MUTEX)
#define QP_EX_CALLS (184 + LONGER_MUTEX)
#define CQ_EX_STATUS (132 + LONGER_MUTEX)
#define CQ_EX_WR_ID (136 + LONGER_MUTEX)
#define CQ_EX_CALLS (144 + LONGER_MUTEX)

/* By place among the pointers, as QP_CALLS of exporter/verbs/functions.py. */
enum qp_call {
	call_bind_mw = 2,
	call_local_inv = 3,
	call_set_inline_data = 13,
	call_set_inline_data_list = 14,
	call_set_sge = 15,
	call_set_sge_list = 16,
	call_start = 17,
	call_complete = 18,
	call_abort = 19,
	call_atomic_write = 20,
	qp_calls = 22,
};
enum cq_call {
	call_start_poll,
	call_next_poll,
	call_end_poll,
	call_read_opcode,
	call_read_byte_len = 5,
	call_read_qp_num = 7,
	cq_calls = 8,
};
/* What a queue pair or completion queue points to, sent once. */
struct extended_calls {
	__u64 functions[qp_calls];
};
struct extended_key {
	__u32 tgid;
	__u32 of_cq;
	__u64 sum;
};
MAP(extended_calls, LRU_HASH, struct extended_key, struct extended_calls, 1024);
struct learned_object {
	struct extended_calls calls;
	__u32 tgid;
	__u32 of_cq;
};
EVENTS(learned_objects, struct learned_object, 64 * 1024);

/* Whether an object without this call has none of them. */
static __always_inline bool is_vital(__u32 of_cq, __u32 call)
{
	return of_cq ? call <= call_end_poll : call >= call_start && call <= call_abort;
}

/* What is in the place of an object's pointers; 0 if it is no object with such calls. Most are plain, with anything in
 * that place, which is judged outside. Read word by word: callers' stacks are nearly full. */
static __always_inline __u64 sum_of_calls(__u64 at, __u32 of_cq)
{
	__u64 sum = 0, function;

	for (__u32 call = 0; call < (of_cq ? cq_calls : qp_calls); call++) {
		function = 0;
		bpf_probe_read_user(&function, sizeof(function), (void *)(at + call * sizeof(function)));
		if (!function && is_vital(of_cq, call))
			return 0;
		sum = (sum << 7 | sum >> 57) ^ function;
	}
	return sum;
}

static __always_inline void learn_object(__u64 at, __u32 of_cq)
{
	static const struct extended_calls none;
	struct extended_key key = {.tgid = bpf_get_current_pid_tgid() >> 32, .of_cq = of_cq};
	struct extended_calls *calls;
	struct learned_object *record;

	key.sum = sum_of_calls(at, of_cq);
	if (!key.sum || bpf_map_lookup_elem(&extended_calls, &key))
		return;
	calls = lookup_or_init(extended_calls, &key, &none);
	if (!calls)
		return;
	for (__u32 call = 0; call < (of_cq ? cq_calls : qp_calls); call++)
		bpf_probe_read_user(&calls->functions[call], sizeof(__u64),
				    (void *)(at + call * sizeof(__u64)));
	if (!may_send(key.tgid))
		return;
	record = reserve(learned_objects);
	if (!record) { /* the next call sends it */
		bpf_map_delete_elem(&extended_calls, &key);
		return;
	}
	record->calls = *calls;
	record->tgid = key.tgid;
	record->of_cq = of_cq;
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void learn_cq(__u64 qp, __u64 at)
{
	__u64 cq = 0;

	if (!bpf_probe_read_user(&cq, sizeof(cq), (void *)(qp + at)) && cq)
		learn_object(cq + CQ_EX_CALLS, 1);
}

/* Not inlined: verified once. */
__noinline int learn_qp(__u64 qp)
{
	learn_object(qp + QP_EX_CALLS, 0);
	learn_cq(qp, offsetof(struct user_qp, send_cq));
	learn_cq(qp, offsetof(struct user_qp, recv_cq));
	return 0;
}

/* At ibv_modify_qp, without which no queue pair can post. */
UPROBE(extended_learn)
{
	return learn_qp(PT_REGS_PARM1(ctx));
}
