/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls of UCX's protocol layer: sends, receives, remote reads and writes, connections. The functions without _nbx call
 * these. Structures are those of ucp.h and ucp_def.h, UCX 1.13 to 1.22. */
#include "arguments.h"
#include "call.bpf.h"
#include "lengths.h"

enum api { /* the probed functions; those up to ucp_worker_flush_nbx return a request or a status */
	   ucp_tag_send_nbx,
	   ucp_tag_send_sync_nbx,
	   ucp_stream_send_nbx,
	   ucp_am_send_nbx,
	   ucp_put_nbx,
	   ucp_get_nbx,
	   ucp_tag_recv_nbx,
	   ucp_tag_msg_recv_nbx,
	   ucp_stream_recv_nbx,
	   ucp_am_recv_data_nbx,
	   ucp_ep_close_nbx,
	   ucp_ep_flush_nbx,
	   ucp_worker_flush_nbx,
	   ucp_ep_create
} __attribute__((packed));

struct calls_key {
	__u32 tgid;
	enum api api;
	__u8 zero[3];
};
struct calls {
	__u64 unseen; /* where returns are not seen: all of them */
	__u64 completed;
	__u64 pending;
	__u64 failed;
	__u64 bytes;   /* of sends, remote reads and writes that were accepted */
	__u64 unsized; /* of those: of unknown size */
};
MAP(calls, HASH, struct calls_key, struct calls, 4096);

enum { CONTIGUOUS, IOV = 2, SGL = 4, CLASS_MASK = 7, CLASS_SHIFT = 3 };
#define FIELD_DATATYPE (1 << 3)
#define FIELD_LENGTHS (1 << 1)
#define FIELD_COUNTS (1 << 3)

/* The bytes of `count` elements at `buffer`; -1 if they are not known. */
static __noinline __s64 bytes_of(__u64 buffer, __u64 count, __u64 address)
{
	struct { /* ucp_request_param_t */
		__u32 fields, flags;
		__u64 request, callback, datatype;
	} param;
	struct { /* ucp_dt_local_sgl_t */
		__u64 fields, buffers, lengths;
	} list;
	__u64 size;

	if (count > MOST_LENGTH || !read_user(&param, address))
		return -1;
	if (!(param.fields & FIELD_DATATYPE))
		return count;
	size = param.datatype >> CLASS_SHIFT;
	switch (param.datatype & CLASS_MASK) {
	case CONTIGUOUS:
		return size && count > MOST_LENGTH / size ? -1 : (__s64)(count * size);
	case IOV:
		return sum_lengths(buffer, count, 2, 1);
	case SGL:
		if (!read_user(&list, buffer) || !(list.fields & FIELD_LENGTHS) || list.fields & FIELD_COUNTS)
			return -1;
		return sum_lengths(list.lengths, count, 1, 0);
	}
	return -1;
}

/* The bytes that a call sends, reads or writes; 0 of the others: of what is received only the room for it is known. */
static __always_inline __s64 bytes_of_call(struct pt_regs *ctx, __u8 api)
{
	__u64 buffer = PT_REGS_PARM2(ctx), count = PT_REGS_PARM3(ctx), param;

	if (api == ucp_tag_send_nbx || api == ucp_tag_send_sync_nbx) {
		param = PT_REGS_PARM5(ctx);
	} else if (api == ucp_stream_send_nbx) {
		param = PT_REGS_PARM4(ctx);
	} else if (api == ucp_am_send_nbx) {
		buffer = PT_REGS_PARM5(ctx);
		count = argument(ctx, 5);
		param = argument(ctx, 6);
	} else if (api == ucp_put_nbx || api == ucp_get_nbx) {
		param = argument(ctx, 5);
	} else {
		return 0;
	}
	return bytes_of(buffer, count, param);
}

static __always_inline struct calls *calls_of(const struct call *call)
{
	static const struct calls none;
	struct calls_key key = {.tgid = call->thread.tgid, .api = call->cookie.api};

	return lookup_or_init(calls, &key, &none);
}

UPROBE(on_enter)
{
	struct call call, *row;
	struct calls *counts;

	if (!enter(ctx, &call))
		return 0;
	if (call.returning) {
		row = flight_of(in_flight, &call.thread);
		if (row)
			row->arguments[0] = bytes_of_call(ctx, call.cookie.api);
		return 0;
	}
	counts = calls_of(&call);
	if (counts)
		add(&counts->unseen, 1);
	return 0;
}

#define LEAST_STATUS (-100) /* UCS_ERR_LAST: what is above is a ucs_status_t as a pointer */

AT_RETURN(on_return)
{
	__s64 result = PT_REGS_RC(ctx);
	struct calls *counts;
	struct call call;
	__s64 bytes;

	if (!leave(ctx, &call))
		return 0;
	if (call.cookie.api == ucp_ep_create) /* a ucs_status_t */
		result = (__s8)result;
	counts = calls_of(&call);
	if (result < 0 && result >= LEAST_STATUS)
		count_error(&call, result);
	if (!counts)
		return 0;
	if (result < 0 && result >= LEAST_STATUS) {
		add(&counts->failed, 1);
		return 0;
	}
	add(result ? &counts->pending : &counts->completed, 1);
	bytes = call.arguments[0];
	if (bytes < 0)
		add(&counts->unsized, 1);
	else
		add(&counts->bytes, bytes);
	return 0;
}

FORGET()
