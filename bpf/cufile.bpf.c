/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* I/O of GPUDirect Storage by file system, counted where a call returns; at its entry where returns are not seen.
 * Arguments and structures are those of cufile.h, libcufile 1.14 to 1.20. */
#include "kernel.h"
#define SHARED_TABLES table_handles, table_io,
#include "call.bpf.h"

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

OBJECTS(handles, struct filesystem, 16384)

struct io_key {
	__u32 tgid;
	enum api api;
	__u8 opcode; /* of an entry of a batch: 0 reads, 1 (or anything else) writes */
	__u8 zero[2];
	struct filesystem filesystem;
};
SHARED(io, struct io_key, struct io, 4096); /* a process may mount any number of file systems */

/* Counts one request, as add_io() does. */
__noinline int count_io(enum api api, __u8 opcode, __u64 address, __s64 bytes, __u64 ns)
{
	static const struct io none;
	struct object handle = object_at(address);
	struct io_key key = {.tgid = handle.tgid, .api = api, .opcode = opcode};
	struct filesystem *filesystem = bpf_map_lookup_elem(&handles, &handle);

	if (filesystem)
		key.filesystem = *filesystem;
	add_io(shared_row(io, key.tgid, &key, &none), bytes, ns);
	return 0;
}

__noinline int count_entry(__u64 address, bool submitted)
{
	__u64 entry[8]; /* CUfileIOParams_t: the fifth to the seventh are size, handle and opcode */

	if (read_user(&entry, address))
		count_io(cuFileBatchIOSubmit, !!(__u32)entry[6], entry[5], submitted ? entry[4] : -1, 0);
	return 0;
}

/* Counts a call by its result; of a batch at most 1,024 entries. */
static __always_inline void count_call(const struct call *call, __s64 result, __u64 ns)
{
	enum api api = call->cookie.api;

	if (api == cuFileBatchIOSubmit)
		for (__u32 i = 0; i < 1024 && i < (__u32)call->arguments[1]; i++)
			count_entry(call->arguments[2] + i * 64, !result);
	else if (api < cuFileReadAsync)
		count_io(api, 0, call->arguments[0], result, ns);
	else if (api < cuFileBatchIOSubmit)
		count_io(api, 0, call->arguments[0], result ? -1 : length_at(call->arguments[2]), 0);
}

/* Remembers on which file system a handle's file is. */
static __always_inline void registered(const struct call *call)
{
	struct object handle = object_at(read_u64(call->arguments[0]));
	struct filesystem filesystem = {};
	__u32 descriptor[3]; /* CUfileDescr_t: its type, of which 1 is a descriptor, a gap, the descriptor */

	if (read_user(&descriptor, call->arguments[1]) && descriptor[0] == 1)
		filesystem_of(descriptor[2], &filesystem);
	remove_shared(handles, handle.tgid, &handle); /* its end was not seen */
	put_shared(handles, handle.tgid, &handle, &filesystem);
}

static __always_inline void entered(const struct call *call)
{
	struct object handle = object_at(call->arguments[0]);

	/* At its return the address may be another handle's. */
	if (call->cookie.api == cuFileHandleDeregister)
		remove_shared(handles, handle.tgid, &handle);
	else if (!call->returning)
		count_call(call, -1, 0);
}

static __always_inline void returned(const struct call *call, __s64 result)
{
	bool waits = call->cookie.api < cuFileReadAsync; /* -1 stands for errno, less for a CUfileOpError */
	__s32 code = waits ? result < -1 ? -result : -(result < 0) : result; /* without CUDA's error */

	count_call(call, waits ? result : code, took(call));
	if (code && call->cookie.api != cuFileHandleDeregister) /* which returns nothing */
		count_error(call, code);
	else if (call->cookie.api == cuFileHandleRegister)
		registered(call);
}

AT_CALLS(entered, returned)
FORGET(drop_ended(handles);)
