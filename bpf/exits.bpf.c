/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How watched processes end: with which status, or killed by which signal. */
#include "kernel.h"

struct process_end {
	__u64 ended; /* CLOCK_MONOTONIC */
	__u32 tgid;
	__u32 status; /* as wait(2) gives it: exit status << 8, or a signal, | 0x80 with a core dump */
};

/* Which processes are reported; user space keeps it. */
MAP(watched, HASH, __u32, __u32, 65536);
EVENTS(process_ends, struct process_end, 1 << 16);

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *task)
{
	struct signal_struct *signal = task->signal;
	__u32 tgid = task->tgid;
	struct process_end *end;

	if (signal->live.counter || !bpf_map_lookup_elem(&watched, &tgid)) /* other threads live on */
		return 0;
	if (bpf_map_delete_elem(&watched, &tgid)) /* another one, that ends at the same time, was first */
		return 0;
	end = reserve(process_ends);
	if (!end)
		return 0;
	end->ended = bpf_ktime_get_ns();
	end->tgid = tgid;
	/* exit_group() and deadly signals leave the code of the whole; else it is that of the last thread. */
	end->status = signal->group_exit_code ? signal->group_exit_code : task->exit_code;
	bpf_ringbuf_submit(end, 0);
	return 0;
}
