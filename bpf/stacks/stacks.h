/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the stacks of calls are made of: the record that user space unwinds, and what decides whether one is taken.
 * exporter/stacks/ has the reader. */
#pragma once
#include "kernel.h"

/* As many frames of Python and bytes of the thread's stack as one record holds. */
#define PYTHON_FRAMES 512
#define PAGE 4096
#define STACK_BYTES (8 * PAGE)
#define PAGES 9 /* that so many bytes can be in */
#define REGISTERS 34
#define HIJACKED 16
#define OF_THREAD (1u << 31)

/* One frame of Python: where its code object is, where in the code it is, and, of the last frame of a run of the
 * interpreter's loop, an address in the stack of the C function that runs it; 0 for the others. */
struct python_frame {
	__u64 code;
	__u64 instruction;
	__u64 loop;
};

/* A return address that a return probe took from the stack. */
struct hijack {
	__u64 at;
	__u64 address;
};

/* Registers by DWARF's numbers, the program counter behind them. `memory` begins at the stack pointer. */
struct stack {
	__u64 time_ns;
	__u32 tgid;
	__u32 tid;
	__u32 id; /* of an allocation: what its row of `live` has; of a thread anywhere: OF_THREAD | tid */
	__u32 weight;
	__u16 api;
	__u16 python; /* frames */
	__u16 hijacked;
	__u16 truncated; /* whether there are more frames of Python */
	__u32 bytes;	 /* of `memory` */
	__u16 interpreter;
	__u16
	    absent; /* pages of `memory` that were not there, a bit for each from that of the stack pointer on */
	__u64 registers[REGISTERS];
	struct hijack hijacks[HIJACKED];
	struct python_frame frames[PYTHON_FRAMES];
	__u8 memory[PAGES * PAGE];
};
EVENTS(stacks, struct stack, 8 * 1024 * 1024);
__u64 stacks_woken_ns = 0;

/* The key of bpf/cuda/cuda.h: this map is the CUDA object's. */
struct thread {
	__u32 tgid;
	__u32 tid;
	__u64 layer;
};
MAP(stack_ids, HASH, struct thread, __u32, 16384);

/* Stacks that may be taken before user space allows more: what they cost is bounded there. */
#define LEAST_FOR_LAUNCHES 64
/* Quarters of the ring buffer in use beyond which the stacks of launches are not taken. */
#define QUARTERS_FOR_LAUNCHES 2
MAP(allowance, ARRAY, __u32, __s64, 1);
__u64 over_budget = 0, launches_over_budget = 0;
__u32 last_id = 0;

/* Launches that were to be in the profile and have no stack, by process: each stands for `launches_every`. */
MAP(launches_without, HASH, __u32, __u64, 4096);

const volatile __u32 launches_every = 1000;
