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
	__u32 heads;		  /* _PyRuntimeState.interpreters.main */
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
	__u8 native_id;	 /* whether thread_id is native_thread_id */
	__u8 state_size; /* bytes of PyThreadState, and of a frame, that have the fields above */
	__u8 frame_size;
	__u8 zero[4];
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

/* A read costs more than its bytes, so structures are read at once, and with a frame those in front of it, which are most
 * often its callers': into a record's `memory`, before the thread's stack is put there. All is 0 where that fails. */
#define MOST_BYTES 256
#define WINDOW 1024
struct window {
	__u64 low, high; /* addresses of the first structure that can be in it, and of the last */
};

static __always_inline void read_window(struct task_struct *task, struct stack *stack, struct window *window,
					__u64 low, __u64 address, __u8 size)
{
	(void)task;
	window->low = low;
	window->high = address;
	read_memory(task, stack->memory, (address - low + size) & (2 * WINDOW - 1), low);
}

/* Where in the memory the frame at an address is. */
static __always_inline __u32 read_frame(struct task_struct *task, struct stack *stack, struct window *window,
					__u64 address, __u8 size)
{
	__u64 low = address & ~(PAGE - 1ULL);

	if (address < window->low || address > window->high) {
		if (address - low > WINDOW - MOST_BYTES)
			low = address - (WINDOW - MOST_BYTES);
		read_window(task, stack, window, low, address, size);
	}
	return (address - window->low) & (WINDOW - 1);
}

static __always_inline __u64 word_at(const struct stack *stack, __u32 at, __u32 offset)
{
	return *(const __u64 *)(stack->memory + at + (offset & (MOST_BYTES - 8)));
}

static __always_inline __u8 byte_at(const struct stack *stack, __u32 at, __u32 offset)
{
	return stack->memory[at + (offset & (MOST_BYTES - 1))];
}

/* Whether there is a PyThreadState of the thread, which is at the beginning of the memory then. */
static __always_inline bool find_state(struct task_struct *task, struct stack *stack,
				       const struct interpreter *python)
{
	__u64 mark = thread_mark(task, python, stack->tid);
	__u64 head = read_word(task, python->runtime + python->heads);
	__u64 state = head ? read_word(task, head + python->threads) : 0;
	struct window window;

	for (int i = 0; i < THREADS && state; i++) {
		read_window(task, stack, &window, state, state, python->state_size);
		if (word_at(stack, 0, python->thread_id) == mark)
			return true;
		state = word_at(stack, 0, python->next);
	}
	return false;
}

struct walk {
	struct task_struct *task;
	struct stack *stack;
	const struct interpreter *python;
	struct window window;
	__u64 cframe, frame;
};

/* Takes one frame: 1 where there is none. */
static long walk_frame(__u32 n, struct walk *walk)
{
	const struct interpreter *python = walk->python;
	struct stack *stack = walk->stack;
	bool ends = python->ends == loop_each;
	struct python_frame *to;
	__u32 at;

	if (!walk->frame || n >= PYTHON_FRAMES)
		return 1;
	to = &stack->frames[n];
	at = read_frame(walk->task, stack, &walk->window, walk->frame, python->frame_size);
	if (python->ends == loop_flag)
		ends = byte_at(stack, at, python->end);
	else if (python->ends == loop_owner)
		ends = byte_at(stack, at, python->end) >= OWNED_BY_INTERPRETER;
	to->code = python->ends == loop_owner && ends ? 0 : word_at(stack, at, python->code) & CODE_MASK;
	to->instruction = python->instruction == NONE ? 0 : word_at(stack, at, python->instruction);
	to->loop = 0;
	if (ends) {
		to->loop = python->ends == loop_owner ? walk->frame : walk->cframe;
		if (python->ends != loop_owner)
			walk->cframe = read_word(walk->task, walk->cframe + python->previous_of_cframe);
	}
	walk->frame = word_at(stack, at, python->previous);
	stack->python = n + 1;
	return 0;
}

static __always_inline void walk_python(struct task_struct *task, struct stack *stack,
					const struct interpreter *python)
{
	struct walk walk = {.task = task, .stack = stack, .python = python, .window = {.low = 1}};

	if (!find_state(task, stack, python))
		return;
	if (python->cframe != NONE)
		walk.cframe = word_at(stack, 0, python->cframe);
	walk.frame = python->frame != NONE ? word_at(stack, 0, python->frame)
					   : read_word(task, walk.cframe + python->frame_of_cframe);
	bpf_loop(PYTHON_FRAMES, walk_frame, &walk, 0);
	stack->truncated = walk.frame != 0;
}
