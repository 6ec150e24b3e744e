/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The registers a uprobe sees, as bpf_tracing.h names them: declared here, so either machine builds both objects.
 * The layouts are kernel ABI (asm/ptrace.h of each architecture). RETURN_POPS is how far the stack pointer moves
 * between a function's first instruction and its return. */
#pragma once
#include <linux/types.h>

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8;
	unsigned long rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss;
};
#define RETURN_POPS 8
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31], sp, pc, pstate;
};
struct pt_regs {
	struct user_pt_regs user_regs;
	__u64 orig_x0; /* only in the kernel's */
};
#define RETURN_POPS 0
#else
#error "no register layout for this architecture"
#endif
