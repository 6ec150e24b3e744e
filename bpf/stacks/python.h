/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The frames of Python of a thread, out of the interpreter's own structures. Their layout differs by version:
 * user space finds it (exporter/stacks/interpreter.py). */
#pragma once
#include "stacks.h"

/* Reads memory of a thread's process: 0, or an error. The current thread is its own `task`; a sleepable program that
 * defines OTHER_TASKS reads that of any. */
#ifdef OTHER_TASKS
#define read_memory(task, to, size, from) bpf_copy_from_user_task(to, size, (void *)(from), task, 0)
#else
#define read_memory(task, to, size, from) bpf_probe_read_user(to, size, (void *)(from))
#endif

/* How the frames of one run of the interpreter's loop end. */
enum loop_ends { loop_each, loop_flag, loop_owner } __attribute__((packed));

/* Where CPython keeps what is needed: an address, and offsets in bytes. NONE: there is no such field. */
#define NONE 0xffffffff
struct interpreter {
	__u64 runtime;		  /* address of _PyRuntime */
	__u32 heads;		  /* _PyRuntimeState.interpreters.head */
	__u32 threads;		  /* PyInterpreterState.threads.head */
	__u32 next;		  /* PyThreadState.next */
	__u32 thread_id;	  /* PyThreadState.thread_id, or native_thread_id */
	__u32 frame;		  /* PyThreadState's newest frame; NONE: the cframe has it */
	__u32 cframe;		  /* PyThreadState.cframe, or NONE */
	__u32 frame_of_cframe;	  /* _PyCFrame.current_frame */
	__u32 previous_of_cframe; /* _PyCFrame.previous */
	__u32 previous;		  /* of a frame */
	__u32 code;
	__u32 instruction;
	__u32 end; /* of a frame: the byte that loop_flag and loop_owner look at */
	enum loop_ends ends;
	__u8 native_id; /* whether thread_id is native_thread_id */
	__u8 zero[6];
};
MAP(interpreters, HASH, __u32, struct interpreter, 4096);

#define THREADS 1024
#define OWNED_BY_INTERPRETER 3
#define CODE_MASK (~7ULL) /* tags of 3.14's references */

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded" /* the layouts are the kernel's */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#endif
struct task_struct___stacks {
#if defined(__TARGET_ARCH_x86)
	struct thread_struct thread;
#endif
	struct uprobe_task *utask;
};
#pragma clang attribute pop
#pragma clang diagnostic pop

/* What distinguishes the thread in PyThreadState: its pthread_self() is the base of FS in glibc and musl; on arm64
 * the kernel's number of the thread, which is Python's too outside of containers. */
static __always_inline __u64 thread_mark(struct task_struct *task, const struct interpreter *python,
					 __u32 tid)
{
#if defined(__TARGET_ARCH_x86)
	struct task_struct___stacks *of = (void *)task;

	return python->native_id ? tid : BPF_CORE_READ(of, thread.fsbase);
#else
	(void)task, (void)python;
	return tid;
#endif
}

static __always_inline __u64 read_word(struct task_struct *task, __u64 address)
{
	__u64 value = 0;

	(void)task;
	read_memory(task, &value, sizeof(value), address); /* leaves 0 where it fails */
	return value;
}

static __always_inline __u8 read_byte(struct task_struct *task, __u64 address)
{
	__u8 value = 0;

	(void)task;
	read_memory(task, &value, sizeof(value), address); /* leaves 0 where it fails */
	return value;
}

static __always_inline __u64 state_of_thread(struct task_struct *task, const struct interpreter *python,
					     __u32 tid)
{
	__u64 mark = thread_mark(task, python, tid);
	__u64 head = read_word(task, python->runtime + python->heads);
	__u64 state = head ? read_word(task, head + python->threads) : 0;

	for (int i = 0; i < THREADS && state; i++) {
		if (read_word(task, state + python->thread_id) == mark)
			return state;
		state = read_word(task, state + python->next);
	}
	return 0;
}

static __always_inline void walk_python(struct task_struct *task, struct stack *stack,
					const struct interpreter *python)
{
	__u64 state = state_of_thread(task, python, stack->tid), cframe = 0, frame;
	__u32 n;

	if (!state)
		return;
	if (python->cframe != NONE)
		cframe = read_word(task, state + python->cframe);
	frame = python->frame != NONE ? read_word(task, state + python->frame)
				      : read_word(task, cframe + python->frame_of_cframe);
	for (n = 0; n < PYTHON_FRAMES && frame; n++) {
		struct python_frame *to = &stack->frames[n];
		bool ends = python->ends == loop_each;

		if (python->ends == loop_flag)
			ends = read_byte(task, frame + python->end);
		else if (python->ends == loop_owner)
			ends = read_byte(task, frame + python->end) >= OWNED_BY_INTERPRETER;
		to->code = python->ends == loop_owner && ends
			       ? 0
			       : read_word(task, frame + python->code) & CODE_MASK;
		to->instruction =
		    python->instruction == NONE ? 0 : read_word(task, frame + python->instruction);
		to->loop = 0;
		if (ends) {
			to->loop = python->ends == loop_owner ? frame : cframe;
			if (python->ends != loop_owner)
				cframe = read_word(task, cframe + python->previous_of_cframe);
		}
		frame = read_word(task, frame + python->previous);
	}
	stack->python = n;
	stack->truncated = frame != 0;
}
