/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The stack of one thread, wherever it is: the exporter runs this for each thread of a process that hangs. Maps are those
 * of stacks.bpf.c. */
#define OTHER_TASKS
#include "kernel.h"
#include "copy.h"

#define PF_KTHREAD 0x00200000

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded" /* the layouts are the kernel's */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};
#pragma clang attribute pop
#pragma clang diagnostic pop

/* The registers with which the thread entered the kernel last: those that it has, unless it runs. A byte is read where
 * there is a record. */
SEC("iter.s/task")
int take(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	const struct interpreter *python;
	struct pt_regs registers;
	struct stack *stack;
	char taken = 1;
	__u32 tgid;

	if (!task || task->flags & PF_KTHREAD)
		return 0;
	if (bpf_probe_read_kernel(&registers, sizeof(registers), (void *)bpf_task_pt_regs(task)))
		return 0;
	stack = reserve(stacks);
	if (!stack)
		return 0;
	tgid = task->tgid;
	stack->time_ns = bpf_ktime_get_ns();
	stack->tgid = tgid;
	stack->tid = task->pid;
	stack->id = OF_THREAD | task->pid;
	stack->weight = 1;
	stack->api = 0;
	stack->python = 0;
	stack->truncated = 0;
	python = bpf_map_lookup_elem(&interpreters, &tgid);
	stack->interpreter = python != NULL;
	if (python)
		walk_python(task, stack, python);
	copy_registers(stack, &registers);
	copy_hijacks(task, stack);
	copy_memory(task, stack, PT_REGS_SP(&registers));
	bpf_ringbuf_submit(stack, BPF_RB_FORCE_WAKEUP);
	bpf_seq_write(context->meta->seq, &taken, sizeof(taken));
	return 0;
}
