/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Programs that run where a function returns. The kernel puts an address of its own, the trampoline's, in place of the
 * caller's, and keeps a list of what it replaced. At each replacement it drops from that list what lies below the stack
 * pointer, as calls that were left by longjmp (cleanup_return_instances). A call on another stack above, of a signal
 * handler on its sigaltstack as a rule, would so drop calls that still return: the process dies at their return.
 *
 * Since Linux 6.13 a program can run at the call too and prevent the replacement (BPF_TRACE_UPROBE_SESSION). The exporter
 * loads AT_RETURN() programs so where it can, and sets the constants here. The program at the entry takes a call that
 * is_beside() as one of which the return is not seen. SEC("uretprobe") programs have no such protection. */
#pragma once
#include "probe.h"

/* Where a thread's list is in the kernel's structures, in bytes (bpf/session.bpf.c); all 0: no sessions. */
const volatile __u32 task_utask = 0, utask_instances = 0, instance_stack = 0, instance_next = 0;
/* Where the trampoline's address is. */
const volatile __u32 task_mm = 0, mm_area = 0, area_address = 0;
__u64 returns_skipped = 0; /* calls that were beside another */

#define MOST_INSTANCES 64 /* MAX_URETPROBE_DEPTH of kernel/events/uprobes.c */

/* A pointer in a structure of the kernel, read without a helper, as the verifier knows the structure's type. 0 where
 * that cannot be read. */
static __always_inline void *kernel_pointer(void *structure, __u32 at)
{
	return *(void **)(structure + at);
}

/* The trampoline's address in this process (get_trampoline_vaddr of the kernel). 0: not known. */
static __always_inline __u64 trampoline(void)
{
	void *mm, *area;

	if (!task_mm)
		return 0;
	mm = kernel_pointer(bpf_get_current_task_btf(), task_mm);
	area = mm ? kernel_pointer(mm, mm_area) : NULL;
	return area ? *(__u64 *)(area + area_address) : 0;
}

/* Whether a call that began with this stack pointer may still return: of one that waits for its return probe the caller's
 * address is replaced by the trampoline's. After a longjmp later frames have other things there. Where that address is not
 * known, it is one with which a page begins, and no small number. On arm64 the return address is in a register. */
CHECKED_ONCE int may_return(__u64 sp)
{
#if defined(__TARGET_ARCH_x86)
	__u64 address, expected;

	if (!read_user(&address, sp))
		return 1;
	expected = trampoline();
	return expected ? address == expected : address >> 32 && !(address & 4095);
#else
	(void)sp;
	return 1;
#endif
}

/* Whether the thread is in a call below this stack pointer, which still returns: then this one is on another stack. */
CHECKED_ONCE int is_beside_any(__u64 sp)
{
	void *utask, *instance;
	__u64 stack;

	if (!task_utask)
		return 0;
	utask = kernel_pointer(bpf_get_current_task_btf(), task_utask);
	if (!utask)
		return 0;
	instance = kernel_pointer(utask, utask_instances);
	for (int i = 0; i < MOST_INSTANCES && instance; i++) {
		stack = *(__u64 *)(instance + instance_stack);
		if (stack > sp)
			return 0;
		if (may_return(stack))
			return stack < sp; /* the same: this call is a jump from that one */
		instance = kernel_pointer(instance, instance_next);
	}
	return 0;
}

/* At an entry: whether the return of this call is not seen, as it would harm a call on another stack. Counts it. */
static __always_inline bool is_beside(__u64 sp)
{
	if (!task_utask || !is_beside_any(sp))
		return false;
	add(&returns_skipped, 1);
	return true;
}

/* Whether a program runs at the call, as one in a session does too. */
static __always_inline bool at_call(struct pt_regs *ctx)
{
	return task_utask && bpf_get_func_ip(ctx) == PT_REGS_IP(ctx);
}

/* The result of a session's program at a call: 1 prevents that the return is probed. The verifier knows nothing of a
 * function's result that it checks once, so it is limited here, unseen by the compiler. */
static __always_inline int prevented(struct pt_regs *ctx)
{
	__u64 beside = is_beside_any(PT_REGS_SP(ctx));

	barrier_var(beside);
	return beside & 1;
}

/* AT_RETURN(name) { ... } is a program with `struct pt_regs *ctx` that runs where a function returns. In a session it
 * begins at the call. */
#define AT_RETURN(name)                                                                                      \
	static __always_inline int name##_body(struct pt_regs *ctx);                                         \
	SEC("uretprobe/session")                                                                             \
	int name(struct pt_regs *ctx)                                                                        \
	{                                                                                                    \
		use_kernel_stack();                                                                          \
		return at_call(ctx) ? prevented(ctx) : name##_body(ctx);                                     \
	}                                                                                                    \
	static __always_inline int name##_body(struct pt_regs *ctx)
