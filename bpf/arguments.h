/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Arguments of a call that has just begun: bpf_tracing.h has the first five of both machines. */
#pragma once
#include "probe.h"

#if defined(__TARGET_ARCH_x86)
#define IN_REGISTERS 6
#define ON_STACK(ctx) (PT_REGS_SP(ctx) + 8)
#else
#define IN_REGISTERS 8
#define ON_STACK(ctx) PT_REGS_SP(ctx)
#endif

/* Keeps clang from making one load of two arguments' by an address that it computes: the verifier takes none from ctx. */
#define LOADED(value)                                                                                        \
	({                                                                                                   \
		__u64 value_ = value;                                                                        \
		barrier_var(value_);                                                                         \
		value_;                                                                                      \
	})

/* An integer or pointer argument, counted from 0. */
static __always_inline __u64 argument(struct pt_regs *ctx, __u8 at)
{
	switch (at) {
	case 0:
		return LOADED(PT_REGS_PARM1(ctx));
	case 1:
		return LOADED(PT_REGS_PARM2(ctx));
	case 2:
		return LOADED(PT_REGS_PARM3(ctx));
	case 3:
		return LOADED(PT_REGS_PARM4(ctx));
	case 4:
		return LOADED(PT_REGS_PARM5(ctx));
#if defined(__TARGET_ARCH_x86)
	case 5:
		return LOADED(ctx->r9);
#else
	case 5:
		return LOADED(ctx->user_regs.regs[5]);
	case 6:
		return LOADED(ctx->user_regs.regs[6]);
	case 7:
		return LOADED(ctx->user_regs.regs[7]);
#endif
	default:
		return read_u64(ON_STACK(ctx) + 8ull * (at - IN_REGISTERS));
	}
}
