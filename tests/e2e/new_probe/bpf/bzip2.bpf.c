/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What libbz2 compresses and expands in one call, counted where the call returns. Arguments are those of bzlib.h. */
#include "call.bpf.h"

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

static __always_inline void entered(const struct call *call)
{
	if (!call->returning)
		count_call(call);
}

static __always_inline void returned(const struct call *call, __s64 result)
{
	struct work *counted = count_call(call);
	__s32 code = result;
	__u32 length;

	if (code)
		count_error(call, code);
	if (!counted)
		return;
	add_duration(&counted->took, took(call));
	if (!code && read_user(&length, call->arguments[1]))
		add(&counted->bytes, length);
}

AT_CALLS(entered, returned)
FORGET()
