/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Threads of followed processes that use OpenSSL: the call that each is in, and the socket that it received from. */
#pragma once
#include "connections.h"
#include "thread.h"

#define MOST_TLS_THREADS 16384

struct tls_thread {
	__u64 socket; /* its address, no more than a key */
	__u64 sp;     /* with which the call began; 0: in none */
	__u64 ip;
	__u64 ssl;
	__u64 buffer;
	__u64 size;   /* of the buffer */
	__u64 result; /* where the number of bytes is written; 0: it is returned */
	__u64 start;
};

static const struct tls_thread no_tls_thread;
/* By thread, to its end. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_TLS_THREADS);
	__type(key, __u64);
	__type(value, struct tls_thread);
} tls_threads SEC(".maps");
__u64 tls_threads_lost = 0, tls_threads_full_tick = 0;

static __always_inline void forget_tls_thread(void)
{
	__u64 id = bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&tls_threads, &id);
}

/* Whether a socket call is made by OpenSSL for a call that is followed: with TLS in the kernel its bytes are not encrypted,
 * and are counted there. Keeps which socket a thread received from. */
static __always_inline bool is_of_tls(__u64 socket, bool sends)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	__u64 id = bpf_get_current_pid_tgid();
	struct tls_thread *thread;

	thread =
	    sends ? bpf_map_lookup_elem(&tls_threads, &id) : lookup_or_init(tls_threads, &id, &no_tls_thread);
	if (!thread)
		return false;
	if (!sends)
		thread->socket = socket;
	return thread->sp && made_by(thread->sp, false, PT_REGS_SP(regs));
}
