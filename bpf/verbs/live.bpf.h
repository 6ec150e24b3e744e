/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which functions of its provider a process calls: struct ibv_context has them, and every object of libibverbs begins
 * with a pointer to its context. exporter/verbs/code/live.py judges what they are. */
#pragma once
#include "control.h"

/* struct ibv_context, public and the same since rdma-core 17. */
#define CONTEXT_POLL_CQ 96
#define CONTEXT_POST_SEND 208
#define CONTEXT_POST_RECV 216

struct live_key {
	__u32 tgid;
	__u32 zero;
	__u64 context;
};
struct live_functions {
	__u64 poll_cq, post_recv, post_send;
};
/* What was sent to user space. A process can make up any number of contexts: it must not keep others' out. */
MAP(live_functions, LRU_HASH, struct live_key, struct live_functions, 4096);

/* By process: how often its pointers were sent. */
#define MOST_SENT 64
struct live_process {
	__u32 tgid;
	__u32 zero;
};
MAP(live_sent, LRU_HASH, struct live_process, __u64, 1024);

struct live_context {
	struct live_functions functions;
	__u32 tgid;
	__u32 zero;
};
EVENTS(live_contexts, struct live_context, 64 * 1024);

static __always_inline bool may_send(__u32 tgid)
{
	static const __u64 none;
	struct live_process key = {.tgid = tgid};
	__u64 *sent = lookup_or_init(live_sent, &key, &none);

	return sent && __sync_fetch_and_add(sent, 1) < MOST_SENT;
}

/* At functions with an object of libibverbs as first argument, or with cookie 1 the context itself. */
UPROBE(live_enter)
{
	struct live_key key = {.tgid = bpf_get_current_pid_tgid() >> 32, .context = PT_REGS_PARM1(ctx)};
	struct live_functions now, *known;
	struct live_context *record;

	if (!bpf_get_attach_cookie(ctx) &&
	    bpf_probe_read_user(&key.context, sizeof(key.context), (void *)PT_REGS_PARM1(ctx)))
		return 0;
	if (bpf_probe_read_user(&now.poll_cq, sizeof(now.poll_cq), (void *)(key.context + CONTEXT_POLL_CQ)) ||
	    bpf_probe_read_user(&now.post_send, sizeof(now.post_send),
				(void *)(key.context + CONTEXT_POST_SEND)) ||
	    bpf_probe_read_user(&now.post_recv, sizeof(now.post_recv),
				(void *)(key.context + CONTEXT_POST_RECV)))
		return 0;
	known = bpf_map_lookup_elem(&live_functions, &key);
	if (known && known->poll_cq == now.poll_cq && known->post_send == now.post_send &&
	    known->post_recv == now.post_recv)
		return 0;
	if (bpf_map_update_elem(&live_functions, &key, &now, BPF_ANY)) {
		add(&live_functions_lost, 1);
		return 0;
	}
	if (!may_send(key.tgid))
		return 0;
	record = reserve(live_contexts);
	if (!record) { /* the next call sends it */
		bpf_map_delete_elem(&live_functions, &key);
		return 0;
	}
	record->functions = now;
	record->tgid = key.tgid;
	record->zero = 0;
	bpf_ringbuf_submit(record, 0);
	return 0;
}
