/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What libbz2 compresses and expands in one call, counted where the call returns. Arguments are those of bzlib.h. */
#include "call.h"

enum api { BZ2_bzBuffToBuffCompress, BZ2_bzBuffToBuffDecompress } __attribute__((packed));

struct work_key {
	__u32 tgid;
	enum api api;
	__u8 zero[3];
};
struct work {
	__u64 calls;
	__u64 bytes; /* that came out of those which succeeded */
	struct duration took;
};
MAP(work, HASH, struct work_key, struct work, 1024);

static __always_inline struct work *count_call(const struct call *call)
{
	static const struct work none;
	struct work_key key = {.tgid = call->thread.tgid, .api = call->cookie.api};
	struct work *counted = lookup_or_init(work, &key, &none);

	if (counted)
		add(&counted->calls, 1);
	return counted;
}

SEC("uprobe")
int on_enter(struct pt_regs *ctx)
{
	struct call call;

	if (enter(ctx, &call) && !call.returning)
		count_call(&call);
	return 0;
}

AT_RETURN(on_return)
{
	__s32 code = PT_REGS_RC(ctx);
	struct work *counted;
	struct call call;
	__u32 length;

	if (!leave(ctx, &call))
		return 0;
	counted = count_call(&call);
	if (code)
		count_error(&call, code);
	if (!counted)
		return 0;
	add_duration(&counted->took, bpf_ktime_get_ns() - call.start_ns);
	if (!code && read_user(&length, call.arguments[1]))
		add(&counted->bytes, length);
	return 0;
}

FORGET()
