/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Stacks of calls that allocate GPU memory, and of some that launch: registers, a piece of the thread's stack and its
 * frames of Python, for user space to unwind. Attached only while profiles are on. */
#include "kernel.h"
#include "python.h"

struct cookie {
	__u16 api;
	__u8 layer; /* of bpf/cuda/cuda.h */
	__u8 zero[5];
};
COOKIE()

#if defined(__TARGET_ARCH_x86)
static __always_inline void copy_registers(struct stack *stack, const struct pt_regs *ctx)
{
	__u64 *to = stack->registers;

	to[0] = ctx->rax, to[1] = ctx->rdx, to[2] = ctx->rcx, to[3] = ctx->rbx;
	to[4] = ctx->rsi, to[5] = ctx->rdi, to[6] = ctx->rbp, to[7] = ctx->rsp;
	to[8] = ctx->r8, to[9] = ctx->r9, to[10] = ctx->r10, to[11] = ctx->r11;
	to[12] = ctx->r12, to[13] = ctx->r13, to[14] = ctx->r14, to[15] = ctx->r15;
	to[16] = ctx->rip;
}
#else
static __always_inline void copy_registers(struct stack *stack, const struct pt_regs *ctx)
{
	const struct user_pt_regs *from = &ctx->user_regs;

	for (int i = 0; i < 31; i++)
		stack->registers[i] = from->regs[i];
	stack->registers[31] = from->sp;
	stack->registers[32] = from->pc;
}
#endif

/* A page is there as a whole or not at all. */
static __always_inline void copy_memory(struct stack *stack, __u64 sp)
{
	__u64 in_page = sp & (PAGE - 1), page = sp - in_page;

	stack->bytes = 0;
	if (bpf_probe_read_user(stack->memory + in_page, PAGE - in_page, (void *)sp))
		return;
	stack->bytes = PAGE;
	for (int i = 1; i < PAGES; i++) {
		if (bpf_probe_read_user(stack->memory + i * PAGE, PAGE, (void *)(page + i * PAGE)))
			return;
		stack->bytes += PAGE;
	}
}

static __always_inline void copy_hijacks(struct stack *stack)
{
	struct task_struct___stacks *task = (void *)bpf_get_current_task();
	struct return_instance *instance = BPF_CORE_READ(task, utask, return_instances);
	__u32 n;

	for (n = 0; n < HIJACKED && instance; n++) {
		stack->hijacks[n].at = BPF_CORE_READ(instance, stack);
		stack->hijacks[n].address = BPF_CORE_READ(instance, orig_ret_vaddr);
		instance = BPF_CORE_READ(instance, next);
	}
	stack->hijacked = n;
}

static __always_inline bool send(struct pt_regs *ctx, __u64 thread, __u16 api, __u32 id, __u32 weight)
{
	struct stack *stack = reserve(stacks);
	__u32 tgid = thread >> 32;
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
		walk_python(stack, python);
	copy_registers(stack, ctx);
	copy_hijacks(stack);
	copy_memory(stack, PT_REGS_SP(ctx));
	bpf_ringbuf_submit(stack, 0);
	return true;
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

/* Runs at calls that allocate, before their return: that finds the stack's number by thread. */
SEC("uprobe")
int on_allocation(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	__u64 id = bpf_get_current_pid_tgid();
	struct thread thread = {.tgid = id >> 32, .tid = id, .layer = cookie.layer};
	__u32 number = 0, *before = bpf_map_lookup_elem(&stack_ids, &thread);

	if (is_allowed(0, &over_budget)) {
		number = __sync_fetch_and_add(&last_id, 1) + 1;
		if (!number || !send(ctx, id, cookie.api, number, 1))
			number = 0;
	}
	if (before)
		*before = number;
	else if (number && insert(stack_ids, &thread, &number, BPF_ANY))
		add(&stack_ids_lost, 1);
	return 0;
}

/* One call in `launches_every`, at random. */
SEC("uprobe")
int on_some_launches(struct pt_regs *ctx)
{
	__u64 id, zero = 0, *without;
	__u32 tgid;

	if (bpf_get_prandom_u32() % launches_every)
		return 0;
	id = bpf_get_current_pid_tgid();
	if (is_allowed(LEAST_FOR_LAUNCHES, &launches_over_budget) &&
	    send(ctx, id, cookie_of(ctx).api, 0, launches_every))
		return 0;
	tgid = id >> 32;
	without = lookup_or_init(launches_without, &tgid, &zero);
	if (without)
		add(without, 1);
	return 0;
}
