/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* I/O of GPUDirect Storage by file system, counted where a call returns; at its entry where returns are not seen.
 * Arguments and structures are those of cufile.h, libcufile 1.14 to 1.20. */
#include "kernel.h"
#include "call.h"

enum api { /* the probed functions; the first four wait and return bytes, the others a CUfileError_t */
	   cuFileRead,
	   cuFileReadv,
	   cuFileWrite,
	   cuFileWritev,
	   cuFileReadAsync,
	   cuFileWriteAsync,
	   cuFileBatchIOSubmit,
	   cuFileHandleRegister,
	   cuFileHandleDeregister
} __attribute__((packed));

struct handle {
	__u64 address;
	__u32 tgid;
	__u32 zero;
};
MAP(handles, HASH, struct handle, struct filesystem, 16384);

struct io_key {
	__u32 tgid;
	enum api api;
	__u8 opcode; /* of an entry of a batch: 0 reads, 1 (or anything else) writes */
	__u8 zero[2];
	struct filesystem filesystem;
};
struct io {
	__u64 requests;
	__u64 succeeded;
	__u64 bytes; /* of those: moved, or submitted where the call does not wait */
	struct duration took;
};
MAP(io, HASH, struct io_key, struct io, 4096);

/* One request. `bytes` is negative if it failed, or is not seen to return; `ns` is 0 if it is not timed. */
__noinline int count_io(enum api api, __u8 opcode, __u64 handle, __s64 bytes, __u64 ns)
{
	static const struct io none;
	struct io_key key = {.tgid = this_thread().tgid, .api = api, .opcode = opcode};
	struct handle at = {.address = handle, .tgid = key.tgid};
	struct filesystem *filesystem = bpf_map_lookup_elem(&handles, &at);
	struct io *counts;

	if (filesystem)
		key.filesystem = *filesystem;
	counts = lookup_or_init(io, &key, &none);
	if (!counts)
		return 0;
	add(&counts->requests, 1);
	if (ns)
		add_duration(&counts->took, ns);
	if (bytes >= 0) {
		add(&counts->succeeded, 1);
		add(&counts->bytes, bytes);
	}
	return 0;
}

#define MOST_ENTRIES 1024 /* of a batch */

__noinline int count_entry(__u64 address, bool submitted)
{
	struct { /* CUfileIOParams_t */
		__u64 mode, buffer, file_offset, buffer_offset, size, handle, opcode, cookie;
	} entry;

	if (read_user(&entry, address))
		count_io(cuFileBatchIOSubmit, !!(__u32)entry.opcode, entry.handle,
			 submitted ? entry.size : -1, 0);
	return 0;
}

static __always_inline void count_call(const struct call *call, __s64 result, __u64 ns)
{
	__u64 size;

	if (call->cookie.api < cuFileReadAsync) {
		count_io(call->cookie.api, 0, call->arguments[0], result, ns);
	} else if (call->cookie.api < cuFileBatchIOSubmit) {
		if (result || !read_user(&size, call->arguments[2]))
			size = -1;
		count_io(call->cookie.api, 0, call->arguments[0], size, 0);
	} else if (call->cookie.api == cuFileBatchIOSubmit) {
		for (__u32 i = 0; i < MOST_ENTRIES && i < (__u32)call->arguments[1]; i++)
			count_entry(call->arguments[2] + i * 64, !result);
	}
}

/* Remembers on which file system a handle's file is. */
static __always_inline void registered(const struct call *call)
{
	struct handle handle = {.tgid = call->thread.tgid};
	struct filesystem filesystem = {};
	__u32 descriptor
	    [3]; /* CUfileDescr_t: its type, of which 1 is a file descriptor, a gap, the descriptor */

	if (!read_user(&handle.address, call->arguments[0]))
		return;
	if (read_user(&descriptor, call->arguments[1]) && descriptor[0] == 1)
		filesystem_of(descriptor[2], &filesystem);
	if (insert(handles, &handle, &filesystem, BPF_ANY))
		add(&handles_lost, 1);
}

SEC("uprobe")
int on_enter(struct pt_regs *ctx)
{
	struct handle handle = {.address = PT_REGS_PARM1(ctx), .tgid = this_thread().tgid};
	struct call call;

	if (!enter(ctx, &call))
		return 0;
	if (call.cookie.api == cuFileHandleDeregister) /* at its return the address may be another handle's */
		bpf_map_delete_elem(&handles, &handle);
	else if (!call.returning)
		count_call(&call, -1, 0);
	return 0;
}

AT_RETURN(on_return)
{
	__s64 result = PT_REGS_RC(ctx);
	struct call call;
	__s32 code;

	if (!leave(ctx, &call) || call.cookie.api == cuFileHandleDeregister) /* which returns nothing */
		return 0;
	if (call.cookie.api < cuFileReadAsync) /* -1 stands for errno, less for a CUfileOpError */
		code = result < -1 ? -result : result < 0 ? -1 : 0;
	else
		code = result = (__s32)result; /* the second half is CUDA's error */
	count_call(&call, result, bpf_ktime_get_ns() - call.start_ns);
	if (code)
		count_error(&call, code);
	else if (call.cookie.api == cuFileHandleRegister)
		registered(&call);
	return 0;
}

DROP(handles, struct handle)
FORGET(handles)
