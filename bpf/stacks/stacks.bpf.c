/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Stacks of calls that allocate GPU memory, and of some that launch: registers, a piece of the thread's stack and its
 * frames of Python, for user space to unwind. Attached only while profiles are on. */
#include "kernel.h"
#include "blocks.h"
#include "copy.h"
#include "python.h"

struct cookie {
	__u16 api;
	__u8 layer; /* of bpf/cuda/cuda.h */
	__u8 zero[5];
};
COOKIE()

static __always_inline bool send(struct pt_regs *ctx, __u64 thread, __u16 api, __u32 id, __u32 weight)
{
	struct stack *stack = reserve(stacks);
	__u32 tgid = thread >> 32;
	struct task_struct *task = (void *)bpf_get_current_task();
	const struct interpreter *python;

	if (!stack)
		return false;
	stack->time_ns = bpf_ktime_get_ns();
	stack->tgid = tgid;
	stack->tid = thread;
	stack->id = id;
	stack->weight = weight;
	stack->api = api;
	stack->python = 0;
	stack->truncated = 0;
	python = bpf_map_lookup_elem(&interpreters, &tgid);
	stack->interpreter = python != NULL;
	if (python)
		walk_python(task, stack, python);
	copy_registers(stack, ctx);
	copy_hijacks(task, stack);
	copy_memory(task, stack, PT_REGS_SP(ctx));
	bpf_ringbuf_submit(stack, wake_seldom(&stacks, stack->time_ns, &stacks_woken_ns));
	return true;
}

/* Whether a stack that is not an allocation's leaves room in the ring buffer for those of allocations. */
static __always_inline bool has_room(__u64 quarters)
{
	if (bpf_ringbuf_query(&stacks, BPF_RB_AVAIL_DATA) <
	    bpf_ringbuf_query(&stacks, BPF_RB_RING_SIZE) / 4 * quarters)
		return true;
	add(&stacks_lost, 1);
	return false;
}

/* Whether one more stack is within what user space allows. */
static __always_inline bool is_allowed(__s64 least, __u64 *over)
{
	__u32 only = 0;
	__s64 *left = bpf_map_lookup_elem(&allowance, &only);

	if (left && *left > least) {
		__sync_fetch_and_add(left, -1);
		return true;
	}
	add(over, 1);
	return false;
}

/* Takes a stack with a number, by which its allocation finds it; 0 where none was taken. */
static __always_inline __u32 take_numbered(struct pt_regs *ctx, __u64 thread, __u16 api, __s64 least)
{
	__u32 number;

	if (!is_allowed(least, &over_budget))
		return 0;
	number = (__sync_fetch_and_add(&last_id, 1) + 1) & ~OF_THREAD;
	return number && send(ctx, thread, api, number, 1) ? number : 0;
}

/* Runs at calls that allocate, before their return: that finds the stack's number by thread. */
UPROBE(on_allocation)
{
	struct cookie cookie = cookie_of(ctx);
	__u64 id = bpf_get_current_pid_tgid();
	struct thread thread = {.tgid = id >> 32, .tid = id, .layer = cookie.layer};
	__u32 number = take_numbered(ctx, id, cookie.api, 0);
	__u32 *before = bpf_map_lookup_elem(&stack_ids, &thread);

	if (before)
		*before = number;
	else if (number && insert(stack_ids, &thread, &number, BPF_ANY))
		add(&stack_ids_lost, 1);
	return 0;
}

/* Goes on where the collector's program has counted a launch and chosen it (bpf/cuda/cuda.bpf.c), with its cookie. */
UPROBE(on_some_launches)
{
	__u64 id = bpf_get_current_pid_tgid(), zero = 0, *without;
	__u32 tgid = id >> 32;

	if (has_room(QUARTERS_FOR_LAUNCHES) && is_allowed(LEAST_FOR_LAUNCHES, &launches_over_budget) &&
	    send(ctx, id, cookie_of(ctx).api & 0xff, 0, launches_every))
		return 0;
	without = lookup_or_init(launches_without, &tgid, &zero);
	if (without)
		add(without, 1);
	return 0;
}

/* Runs at c10::reportMemoryUsageToProfiler(void *block, int64_t bytes, size_t allocated, size_t reserved, c10::Device),
 * which the caching allocator calls for each block, whether a profiler of PyTorch's runs or not. */
UPROBE(on_block)
{
	static const struct allocator none;
	static const __u64 no_rows;
	__u64 id = bpf_get_current_pid_tgid(), *held;
	__u32 tgid = id >> 32;
	__s64 bytes = PT_REGS_PARM2(ctx);
	__u16 device = PT_REGS_PARM5(ctx); /* type and number, a byte each */
	struct block_key key = {.tgid = tgid, .address = PT_REGS_PARM1(ctx)};
	struct allocator_key of = {.tgid = tgid, .device = device >> 8};
	struct block row = {.bytes = bytes, .device = of.device};
	struct allocator *allocator;
	bool large;

	if ((device & 0xff) != DEVICE_CUDA || of.device >= MOST_DEVICES || !key.address || !bytes)
		return 0;
	allocator = lookup_or_init(allocators, &of, &none);
	if (!allocator)
		return 0;
	if (bytes < 0) {
		remove_block(&key, allocator, bpf_map_lookup_elem(&block_shares, &tgid));
	} else {
		large = bytes >= LARGE_BLOCK;
		if (has_room(large ? QUARTERS_FOR_LARGE_BLOCKS : QUARTERS_FOR_BLOCKS))
			row.stack =
			    take_numbered(ctx, id, 0, large ? LEAST_FOR_LARGE_BLOCKS : LEAST_FOR_BLOCKS);
		held = lookup_or_init(block_shares, &tgid, &no_rows);
		put_block(&key, &row, allocator, held);
	}
	allocator->allocated = PT_REGS_PARM3(ctx);
	allocator->reserved = PT_REGS_PARM4(ctx);
	return 0;
}

/* Processes have ended, those in `ended`. */
SEC("raw_tp")
int forget(void *ctx __attribute__((unused)))
{
	bpf_for_each_map_elem(&blocks, drop_block, NULL, 0);
	bpf_for_each_map_elem(&block_shares, drop_share, NULL, 0);
	drop_ended(allocators);
	return 0;
}
