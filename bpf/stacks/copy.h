/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a record has of a thread besides its frames of Python: registers, a piece of its stack, and the return addresses
 * that return probes took from there. */
#pragma once
#include "python.h"

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

#pragma clang loop unroll(full) /* the verifier wants constant offsets into the context */
	for (int i = 0; i < 31; i++)
		stack->registers[i] = from->regs[i];
	stack->registers[31] = from->sp;
	stack->registers[32] = from->pc;
}
#endif

/* Where the stack ends that the thread is on, if that is known: the first thread's below the program's arguments, another's
 * below what the C library keeps of the thread. A thread may be on neither. */
static __always_inline __u64 end_of_stack(struct task_struct *task, __u64 sp)
{
	__u64 end = BPF_CORE_READ(task, mm, arg_start);
#if defined(__TARGET_ARCH_x86)
	struct task_struct___stacks *of = (void *)task;
	__u64 base = BPF_CORE_READ(of, thread.fsbase);

	if (sp < base && base - sp < end - sp) /* an end below `sp` is further away than any */
		end = base;
#endif
	return sp < end ? end : ~0ULL;
}

/* A page is there as a whole or not at all, and then zeros: one that a large array has and nobody has written to, or one
 * that is swapped out. */
static __always_inline void copy_memory(struct task_struct *task, struct stack *stack, __u64 sp)
{
	__u64 left = end_of_stack(task, sp) - sp, all = left < STACK_BYTES ? left : STACK_BYTES;
	__u64 to_page = PAGE - (sp & (PAGE - 1)), at = 0, size;

	stack->bytes = 0;
	stack->absent = 0;
	for (int i = 0; i < PAGES; i++) {
		left = all - at;
		size = left < PAGE ? left : PAGE;
		if (!i && size > to_page)
			size = to_page;
		if (!size)
			break;
		if (read_memory(task, stack->memory + at, size, sp + at))
			stack->absent |= 1 << i;
		else
			stack->bytes = at + size;
		at = left <= size ? all : to_page + i * PAGE;
	}
}

static __always_inline void copy_hijacks(struct task_struct *task, struct stack *stack)
{
	struct return_instance *instance = BPF_CORE_READ(task, utask, return_instances);
	__u32 n;

	for (n = 0; n < HIJACKED && instance; n++) {
		stack->hijacks[n].at = BPF_CORE_READ(instance, stack);
		stack->hijacks[n].address = BPF_CORE_READ(instance, orig_ret_vaddr);
		instance = BPF_CORE_READ(instance, next);
	}
	stack->hijacked = n;
}
