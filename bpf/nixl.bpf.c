/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Transfers of NIXL: posted, polled and released through nixlAgent, described by what the agent passes to its backend.
 * Structures are those of nixl_descriptors.h and nixl_types.h, NIXL 1.0 to 1.5, with libstdc++'s strings and vectors. */
#define SHARED_TABLES table_transfers, table_active,
#include "call.bpf.h"
#include "lengths.h"

#define ENGINE(name)                                                                                         \
	_ZNK##name##8postXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERP15nixlBackendReqHPK23nixlBackendOptionalArgs

enum api { /* the probed functions: of nixlAgent, which return a nixl_status_t, then those of backends */
	   _ZNK9nixlAgent11postXferReqEP12nixlXferReqHPK21nixlAgentOptionalArgs,
	   _ZNK9nixlAgent13getXferStatusEP12nixlXferReqH,
	   _ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH,
	   _ZNK9nixlAgent13createXferReqERK14nixl_xfer_op_tRK12nixlDescListI13nixlBasicDescES7_RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERP12nixlXferReqHPK21nixlAgentOptionalArgs,
	   _ZNK9nixlAgent11makeXferReqERK14nixl_xfer_op_tPK10nixlDlistHRKSt6vectorIiSaIiEES5_SA_RP12nixlXferReqHPK21nixlAgentOptionalArgs,
	   _ZNK9nixlAgent11makeXferReqE14nixl_xfer_op_tRK10nixlDlistHSt4spanIKiLm18446744073709551615EES3_S6_RP12nixlXferReqHPK21nixlAgentOptionalArgs,
	   _ZN9nixlAgent11registerMemERK12nixlDescListI12nixlBlobDescEPK21nixlAgentOptionalArgs,
	   _ZN9nixlAgent12loadRemoteMDERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERS5_,
	   ENGINE(13nixlUcxEngine),
	   ENGINE(15nixlUcxMoEngine),
	   ENGINE(19nixlLibfabricEngine),
	   ENGINE(18nixlMooncakeEngine),
	   ENGINE(14nixlDocaEngine),
	   ENGINE(13nixlGdsEngine),
	   ENGINE(15nixlGdsMtEngine),
	   ENGINE(15nixlPosixEngine),
	   ENGINE(13nixlObjEngine),
	   ENGINE(19nixlAzureBlobEngine),
	   ENGINE(15nixlGusliEngine)
} __attribute__((packed));
#define postXferReq _ZNK9nixlAgent11postXferReqEP12nixlXferReqHPK21nixlAgentOptionalArgs
#define getXferStatus _ZNK9nixlAgent13getXferStatusEP12nixlXferReqH
#define releaseXferReq _ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH

#define UNKNOWN 255 /* operation, backend */
#define MOST_PEER 64

struct transfer_key {
	__u32 tgid;
	__u8 operation; /* nixl_xfer_op_t: 0 reads, 1 writes */
	enum api backend;
	__u8 zero[2];
	char peer[MOST_PEER]; /* the name of the remote agent, cut off */
};
struct transfers {
	__u64 begun;
	__u64 succeeded;
	__u64 failed;
	__u64 released; /* before they were seen to end */
	__u64 unseen;	/* posted again before they were seen to end */
	__u64 bytes;	/* of those that succeeded */
	__u64 unsized;	/* of those: with descriptors that could not be read */
};
SHARED(transfers, struct transfer_key, struct transfers, 4096); /* a process may name any number of peers */

struct duration_key {
	__u32 tgid;
	__u8 operation;
	enum api backend;
	__u8 zero[2];
};
MAP(durations, HASH, struct duration_key, struct duration, 1024);

struct active {
	__u64 start_ns; /* of the postXferReq */
	__s64 bytes;	/* -1: not known */
	struct transfer_key what;
};
OBJECTS(active, struct active, 16384) /* by nixlXferReqH */

#define DESCRIPTOR 32 /* bytes of a nixlMetaDesc: address, length, device, metadata */

/* The bytes of a nixlDescList<nixlMetaDesc>; -1 if it cannot be read, or has too many descriptors. */
static __noinline __s64 bytes_of(__u64 list)
{
	struct {
		__u64 methods, type; /* a nixl_mem_t, and what older ones have beside it */
		__u64 begin, end;
	} descriptors;
	__u64 bytes;

	if (!read_user(&descriptors, list) || descriptors.end < descriptors.begin)
		return -1;
	bytes = descriptors.end - descriptors.begin;
	return bytes % DESCRIPTOR ? -1
				  : sum_lengths(descriptors.begin, bytes / DESCRIPTOR, DESCRIPTOR / 8, 1);
}

static __noinline int read_name(char *to, __u64 string)
{
	struct {
		__u64 address, length;
	} name;

	if (!to || !read_user(&name, string))
		return 0;
	if (name.length > MOST_PEER - 1)
		name.length = MOST_PEER - 1;
	bpf_probe_read_user(to, name.length, (void *)name.address);
	return 0;
}

enum end { SUCCEEDED, FAILED, RELEASED, UNSEEN };

/* Ends a transfer: its row goes, its end is counted. */
static __noinline int end_transfer(const struct object *request, enum end end, __u64 took)
{
	static const struct duration untimed;
	struct active *row = request ? bpf_map_lookup_elem(&active, request) : NULL;
	struct transfer_key what;
	struct transfers *counts;
	struct duration_key key;
	__s64 bytes;

	if (!row)
		return 0;
	what = row->what;
	bytes = row->bytes;
	if (!remove_shared(active, request->tgid, request)) /* another thread was first */
		return 0;
	counts = bpf_map_lookup_elem(&transfers, &what);
	if (!counts)
		return 0;
	if (end != SUCCEEDED) {
		add(end == FAILED     ? &counts->failed
		    : end == RELEASED ? &counts->released
				      : &counts->unseen,
		    1);
		return 0;
	}
	add(&counts->succeeded, 1);
	if (bytes < 0)
		add(&counts->unsized, 1);
	else
		add(&counts->bytes, bytes);
	key = (struct duration_key){what.tgid, what.operation, what.backend, {}};
	add_duration(lookup_or_init(durations, &key, &untimed), took);
	return 0;
}

/* Begins a transfer, in place of one of the same request. */
static __noinline int begin_transfer(const struct object *request, const struct active *row)
{
	static const struct transfers none;
	struct transfers *counts;

	if (!request || !row)
		return 0;
	end_transfer(request, UNSEEN, 0);
	counts = shared_row(transfers, request->tgid, &row->what, &none);
	if (!counts)
		return 0;
	if (!put_shared(active, request->tgid, request, row))
		add(&counts->begun, 1);
	return 0;
}

static __always_inline struct object request_of(const struct call *call)
{
	return object_at(call->arguments[1]);
}

UPROBE(on_enter)
{
	struct call call;

	enter(ctx, &call);
	return 0;
}

/* A backend is called: operation, local and remote descriptors, name of the remote agent. */
UPROBE(on_post)
{
	struct thread thread = this_thread();
	struct call *post = flight_of(in_flight, &thread);
	__u32 backend = cookie_of(ctx).api, operation;
	__u64 *seen = bpf_map_lookup_elem(&hits, &backend);
	struct active row = {.bytes = -1};
	struct object request;

	if (seen)
		add(seen, 1);
	if (!post || post->cookie.api != postXferReq || !is_current(post))
		return 0;
	request = request_of(post);
	row.start_ns = post->start_ns;
	if (!post->arguments[0]) /* the agent, until a backend was seen: this one is part of another */
		return 0;
	post->arguments[0] = 0;
	row.what.tgid = thread.tgid;
	row.what.backend = backend;
	row.what.operation = UNKNOWN;
	if (read_user(&operation, PT_REGS_PARM2(ctx)) && operation <= 1)
		row.what.operation = operation;
	row.bytes = bytes_of(PT_REGS_PARM3(ctx));
	read_name(row.what.peer, PT_REGS_PARM5(ctx));
	begin_transfer(&request, &row);
	return 0;
}

/* postXferReq returned: what it has described by then, or an unknown transfer where its backend is not probed. */
static __noinline int posted(const struct call *call, __s32 status, __u64 took)
{
	struct active unknown = {.bytes = -1};
	struct object request;

	if (!call)
		return 0;
	request = request_of(call);
	if (call->arguments[0]) {
		if (status < 0) /* refused before it reached a backend */
			return 0;
		unknown.start_ns = call->start_ns;
		unknown.what.tgid = request.tgid;
		unknown.what.operation = unknown.what.backend = UNKNOWN;
		begin_transfer(&request, &unknown);
	}
	if (status <= 0)
		end_transfer(&request, status ? FAILED : SUCCEEDED, took);
	return 0;
}

static __noinline int polled(const struct object *request, __s32 status)
{
	struct active *row = request ? bpf_map_lookup_elem(&active, request) : NULL;

	if (row && status <= 0)
		end_transfer(request, status ? FAILED : SUCCEEDED, bpf_ktime_get_ns() - row->start_ns);
	return 0;
}

AT_RETURN(on_return)
{
	__s32 status = PT_REGS_RC(ctx);
	struct object request;
	struct call call;

	if (!leave(ctx, &call))
		return 0;
	request = request_of(&call);
	if (call.cookie.api == postXferReq)
		posted(&call, status, bpf_ktime_get_ns() - call.start_ns);
	else if (call.cookie.api == getXferStatus)
		polled(&request, status);
	else if (call.cookie.api == releaseXferReq && !status)
		end_transfer(&request, RELEASED, 0);
	if (status < 0)
		count_error(&call, status);
	return 0;
}

FORGET(drop_ended(active);)
