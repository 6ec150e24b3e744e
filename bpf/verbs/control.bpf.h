/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The RDMA control path: which queue pairs and memory regions a process has, from libibverbs' own calls.
 *
 * exporter/verbs/control.py has the functions and gives the maps their meaning. Layouts are those of
 * infiniband/verbs.h, the same since rdma-core 17. Only calls that returned success count. */
#pragma once
#include <stddef.h>
#include "qp.h"

#if defined(__TARGET_ARCH_x86)
#define CONTROL_RETURN_POPS 8
#else
#define CONTROL_RETURN_POPS 0
#endif

/* Travels as the uprobe's cookie. */
enum control_call {
	control_create_qp, /* arg1 the attributes, returns the QP; arg0 is a PD or a context */
	control_modify_qp, /* arg0 the QP, arg1 the attributes, arg2 which of them */
	control_query_qp,  /* the same, arg2 as requested */
	control_destroy_qp,
	control_register,	   /* returns the region */
	control_register_dmabuf,   /* the same, memory of a device */
	control_register_extended, /* arg1 has the kind */
	control_reregister,
	control_deregister,
} __attribute__((packed));

struct state_key {
	__u32 tgid;
	__u32 state;
	struct verbs_device device;
};
MAP(qp_states, HASH, struct state_key, __u64, 8192); /* changes to it by ibv_modify_qp */

enum region_memory { region_host, region_dmabuf } __attribute__((packed));

struct region {
	__u64 bytes;
	enum region_memory memory;
	__u8 zero[7];
};
MAP(regions, HASH, struct control_key, struct region, 65536);

struct region_key {
	__u32 tgid;
	enum region_memory memory;
	__u8 zero[3];
	struct verbs_device device;
};
/* Registered bytes are added - removed - untracked. */
struct region_total {
	__u64 added;
	__u64 removed;
	__u64 untracked; /* registered while `regions` was full */
	__u64 registrations;
	__u64 reregistrations;
	__u64 deregistrations;
	__u64 unmatched; /* deregistrations of what was not seen registered: the memory is not known */
};
MAP(region_totals, HASH, struct region_key, struct region_total, 4096);

struct control_thread {
	__u32 tgid;
	__u32 tid;
};
struct control_flight {
	struct verbs_device device; /* of a region that the call ends: freed when the call returns */
	__u64 sp;
	__u64 arguments[3];
	struct qp_life life; /* of a QP that the call ends */
	struct region taken; /* that the call ends */
	enum control_call call;
	__u8 took; /* `taken` was in `regions` */
	__u8 zero[6];
};
MAP(control_flights, HASH, struct control_thread, struct control_flight, 4096);

/* The first fields of the structures that the library's caller sees. */
struct user_qp {
	__u64 context, qp_context, pd, send_cq, recv_cq, srq;
	__u32 handle, qp_num, state, qp_type;
};
struct user_mr {
	__u64 context, pd, addr, length;
};
struct user_qp_attr {
	__u32 qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, access;
	__u32 capabilities[5];
	__u8 dgid[16];
	__u32 flow_label;
	__u8 sgid_index, hop_limit, traffic_class, unused;
	__u16 dlid;
	__u8 sl, src_path_bits, static_rate, is_global, ah_port_num, unused_ah;
	__u8 alternative[32];
	__u16 pkey_index, alt_pkey_index;
	__u8 en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer;
	__u8 port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, unused_end;
};
_Static_assert(offsetof(struct user_qp, qp_num) == 52, "struct ibv_qp");
_Static_assert(offsetof(struct user_qp_attr, dgid) == 56, "struct ibv_qp_attr");
_Static_assert(offsetof(struct user_qp_attr, ah_port_num) == 86, "struct ibv_qp_attr");
_Static_assert(offsetof(struct user_qp_attr, pkey_index) == 120, "struct ibv_qp_attr");
_Static_assert(offsetof(struct user_qp_attr, port_num) == 129, "struct ibv_qp_attr");

#define DEVICE_OF_CONTEXT 0
#define NAME_OF_DEVICE 24
#define ATTRIBUTES_MOST 32	 /* max_send_wr and max_recv_wr; the library writes what there is */
#define ATTRIBUTES_SQ_SIG_ALL 56 /* struct ibv_qp_init_attr and ibv_qp_init_attr_ex */
#define MR_INIT_COMP_MASK 12	 /* struct ibv_mr_init_attr */
#define MR_MASK_FD 4		 /* IBV_REG_MR_MASK_FD */

#define QP_ATTR_STATE 0x1 /* enum ibv_qp_attr_mask */
#define QP_ATTR_PORT 0x20
#define QP_ATTR_PATH 0x80
#define QP_ATTR_PATH_MTU 0x100
#define QP_ATTR_TIMEOUT 0x200
#define QP_ATTR_RETRIES 0x400
#define QP_ATTR_RNR_RETRIES 0x800
#define QP_ATTR_RECEIVE_PSN 0x1000
#define QP_ATTR_SEND_PSN 0x10000
#define QP_ATTR_PEER 0x100000
#define QP_TYPE_RC 2 /* enum ibv_qp_type */
#define QP_TYPE_XRC_SEND 9
#define QP_STATE_RESET 0 /* enum ibv_qp_state */
#define QP_STATE_ERROR 6

static __always_inline struct control_thread control_this_thread(void)
{
	__u64 id = bpf_get_current_pid_tgid();

	return (struct control_thread){.tgid = id >> 32, .tid = id};
}

static __always_inline struct control_key control_key(__u64 address)
{
	return (struct control_key){.tgid = bpf_get_current_pid_tgid() >> 32, .address = address};
}

/* Empty where it cannot be read. */
static __always_inline void read_verbs_device(struct verbs_device *device, __u64 context)
{
	__u64 at = 0;

	__builtin_memset(device, 0, sizeof(*device));
	bpf_probe_read_user(&at, sizeof(at), (void *)(context + DEVICE_OF_CONTEXT));
	if (at)
		bpf_probe_read_user_str(device->name, sizeof(device->name), (void *)(at + NAME_OF_DEVICE));
}

/* What is known of a QP of this process; NULL if nothing. */
static __always_inline struct qp_control *qp_control(__u64 qp)
{
	struct control_key key = control_key(qp);

	return bpf_map_lookup_elem(&qp_controls, &key);
}

/* Begins to know a QP, or gives what is known. Filled in the map: programs' stacks are small. */
static __always_inline struct qp_control *find_or_add_qp(__u64 address, bool created)
{
	static const struct qp_control none;
	struct control_key key = control_key(address);
	struct qp_control *known = bpf_map_lookup_elem(&qp_controls, &key);
	struct user_qp qp;

	if (known && !created)
		return known;
	if (!address || bpf_probe_read_user(&qp, sizeof(qp), (void *)address))
		return NULL;
	if (known)
		bpf_map_delete_elem(&qp_controls, &key);
	known = lookup_or_init(qp_controls, &key, &none);
	if (!known)
		return NULL;
	read_verbs_device(&known->device, qp.context);
	known->number = qp.qp_num;
	known->type = qp.qp_type;
	known->state = qp.state;
	known->changed_ns = bpf_ktime_get_ns();
	if (created)
		known->created_ns = known->changed_ns;
	return known;
}

/* A request on this QP failed: the hardware stopped it, which libibverbs does not know (IBTA 10.3.1: an unreliable one
 * can go to SQE instead, so those are not reported). */
static __always_inline void qp_failed(__u64 address)
{
	struct qp_control *qp = find_or_add_qp(address, false);

	if (!qp || (qp->type != QP_TYPE_RC && qp->type != QP_TYPE_XRC_SEND) || qp->state == QP_STATE_ERROR)
		return;
	qp->state = QP_STATE_ERROR;
	qp->changed_ns = bpf_ktime_get_ns();
}

static __always_inline struct qp_life qp_life(__u64 address, const struct qp_control *control)
{
	struct qp_life life = {.qp.tgid = bpf_get_current_pid_tgid() >> 32};
	struct user_qp qp = {};

	bpf_probe_read_user(&qp, sizeof(qp), (void *)address);
	life.qp.number = qp.qp_num;
	life.qp.context = qp.context;
	if (control && control->number == qp.qp_num)
		life.created_ns = control->created_ns;
	return life;
}

static __always_inline void created_qp(const struct control_flight *call, __u64 address)
{
	struct qp_control *qp = find_or_add_qp(address, true);
	__u32 all = 0, most[2] = {};

	if (!qp)
		return;
	bpf_probe_read_user(&all, sizeof(all), (void *)(call->arguments[1] + ATTRIBUTES_SQ_SIG_ALL));
	qp->all_signaled = !!all;
	bpf_probe_read_user(most, sizeof(most), (void *)(call->arguments[1] + ATTRIBUTES_MOST));
	qp->most_sends = most[0];
	qp->most_receives = most[1];
}

static __always_inline void count_state(struct qp_control *qp)
{
	static const __u64 none;
	struct state_key key = {.tgid = bpf_get_current_pid_tgid() >> 32, .state = qp->state};
	__u64 *changes;

	__builtin_memcpy(&key.device, &qp->device, sizeof(key.device));
	changes = lookup_or_init(qp_states, &key, &none);
	if (changes)
		add(changes, 1);
}

static __always_inline void take_path(struct qp_control *qp, const struct user_qp_attr *attr)
{
	__builtin_memcpy(qp->peer_gid, attr->dgid, sizeof(qp->peer_gid));
	qp->gid_index = attr->sgid_index;
	qp->routed = attr->is_global;
	qp->lid = attr->dlid;
	if (!(qp->known & QP_ATTR_PORT))
		qp->port = attr->ah_port_num;
}

/* ibv_modify_qp set what is in the mask; ibv_query_qp is believed as to the state alone, drivers fill the rest as they
 * like. */
static __always_inline void changed_qp(const struct control_flight *call)
{
	struct qp_control *qp = find_or_add_qp(call->arguments[0], false);
	bool modified = call->call == control_modify_qp;
	__u32 mask = call->arguments[2];
	struct user_qp_attr attr;
	struct qp_life life;

	if (!qp || bpf_probe_read_user(&attr, sizeof(attr), (void *)call->arguments[1]))
		return;
	if (mask & QP_ATTR_STATE) {
		if (modified && attr.qp_state == QP_STATE_RESET) {
			qp->resets += !!qp->known;
			qp->known = 0;
			life = qp_life(call->arguments[0], qp);
			drop_requests(&life);
			qp->send_missed = qp->receive_missed = 0;
		}
		if (modified || qp->state != attr.qp_state)
			qp->changed_ns = bpf_ktime_get_ns();
		qp->state = attr.qp_state;
		if (modified)
			count_state(qp);
	}
	if (!modified)
		return;
	if (mask & QP_ATTR_PORT)
		qp->port = attr.port_num;
	if (mask & QP_ATTR_PATH_MTU)
		qp->path_mtu = attr.path_mtu;
	if (mask & QP_ATTR_TIMEOUT)
		qp->timeout = attr.timeout;
	if (mask & QP_ATTR_RETRIES)
		qp->retries = attr.retry_cnt;
	if (mask & QP_ATTR_RNR_RETRIES)
		qp->rnr_retries = attr.rnr_retry;
	if (mask & QP_ATTR_PEER)
		qp->peer = attr.dest_qp_num;
	if (mask & QP_ATTR_SEND_PSN)
		qp->send_psn = attr.sq_psn;
	if (mask & QP_ATTR_RECEIVE_PSN)
		qp->receive_psn = attr.rq_psn;
	qp->known |= mask;
	if (mask & QP_ATTR_PATH)
		take_path(qp, &attr);
}

/* The memory behind the call may be another QP's by now. */
static __always_inline void destroyed_qp(const struct control_flight *call)
{
	struct control_key key = control_key(call->arguments[0]);
	struct qp_control *qp = bpf_map_lookup_elem(&qp_controls, &key);
	bool newer = qp && qp->created_ns != call->life.created_ns;

	end_qp(&call->life, newer ? NULL : qp);
	if (newer)
		return;
	bpf_map_delete_elem(&extended_posts, &key);
	if (qp)
		bpf_map_delete_elem(&qp_controls, &key);
}

static __always_inline struct region_total *region_total(const struct verbs_device *device,
							 enum region_memory memory)
{
	static const struct region_total none;
	struct region_key key = {.tgid = bpf_get_current_pid_tgid() >> 32, .memory = memory};

	__builtin_memcpy(&key.device, device, sizeof(key.device));
	return lookup_or_init(region_totals, &key, &none);
}

static __always_inline void registered(struct control_flight *call, __u64 address)
{
	struct control_key key = control_key(address);
	struct region region = {}, *missed = bpf_map_lookup_elem(&regions, &key);
	struct region_total *total;
	struct user_mr mr;
	__u32 mask = 0;

	if (!address || bpf_probe_read_user(&mr, sizeof(mr), (void *)address))
		return;
	if (call->call == control_register_extended)
		bpf_probe_read_user(&mask, sizeof(mask), (void *)(call->arguments[1] + MR_INIT_COMP_MASK));
	if (call->call == control_register_dmabuf || mask & MR_MASK_FD)
		region.memory = region_dmabuf;
	region.bytes = mr.length;
	read_verbs_device(&call->device, mr.context);
	total = region_total(&call->device, region.memory);
	if (!total)
		return;
	add(&total->registrations, 1);
	add(&total->added, region.bytes);
	if (missed) /* its end was not seen, or it would not be here */
		add(&total->removed, missed->bytes);
	if (bpf_map_update_elem(&regions, &key, &region, BPF_ANY)) {
		add(&regions_lost, 1);
		add(&total->untracked, region.bytes);
	}
}

/* The library keeps the length that it now has, also where it reports that only a part was done. */
static __always_inline void reregistered(struct control_flight *call, bool success)
{
	struct control_key key = control_key(call->arguments[0]);
	struct region *region = bpf_map_lookup_elem(&regions, &key);
	struct region_total *total;
	struct user_mr mr;

	if (bpf_probe_read_user(&mr, sizeof(mr), (void *)call->arguments[0]))
		return;
	read_verbs_device(&call->device, mr.context);
	total = region_total(&call->device, region ? region->memory : region_host);
	if (!total)
		return;
	if (success)
		add(&total->reregistrations, 1);
	if (!region || region->bytes == mr.length)
		return;
	add(&total->added, mr.length);
	add(&total->removed, region->bytes);
	region->bytes = mr.length;
}

/* Taken out when the call begins: another thread may get the same address before it returns. */
static __always_inline void take_region(struct control_flight *call)
{
	struct control_key key = control_key(call->arguments[0]);
	struct region *region = bpf_map_lookup_elem(&regions, &key);
	__u64 context = 0;

	bpf_probe_read_user(&context, sizeof(context), (void *)call->arguments[0]);
	read_verbs_device(&call->device, context);
	if (!region)
		return;
	call->taken = *region;
	call->took = 1;
	bpf_map_delete_elem(&regions, &key);
}

static __always_inline void deregistered(const struct control_flight *call, bool success)
{
	struct control_key key = control_key(call->arguments[0]);
	struct region_total *total;

	if (!success) {
		if (call->took && bpf_map_update_elem(&regions, &key, &call->taken, BPF_NOEXIST))
			add(&regions_lost, 1);
		return;
	}
	total = region_total(&call->device, call->taken.memory);
	if (!total)
		return;
	add(call->took ? &total->deregistrations : &total->unmatched, 1);
	add(&total->removed, call->taken.bytes);
}

/* Whether a hooked function made this call, as ibv_reg_mr does ibv_reg_mr_iova2. One that never returned is recognised
 * by a stack that is shorter now. */
static __always_inline bool control_nested(const struct control_flight *outer, __u64 sp,
					   enum control_call call)
{
	return outer && (outer->sp > sp || (outer->sp == sp && outer->call != call));
}

SEC("uprobe")
int control_enter(struct pt_regs *ctx)
{
	struct control_flight call = {.call = bpf_get_attach_cookie(ctx), .sp = PT_REGS_SP(ctx)};
	struct control_thread thread = control_this_thread();
	struct control_flight *before = bpf_map_lookup_elem(&control_flights, &thread);

	if (control_nested(before, call.sp, call.call))
		return 0;
	call.arguments[0] = PT_REGS_PARM1(ctx);
	call.arguments[1] = PT_REGS_PARM2(ctx);
	call.arguments[2] = PT_REGS_PARM3(ctx);
	if (call.call == control_destroy_qp)
		call.life = qp_life(call.arguments[0], qp_control(call.arguments[0]));
	if (call.call == control_deregister)
		take_region(&call);
	if (bpf_map_update_elem(&control_flights, &thread, &call, BPF_ANY)) {
		add(&control_flights_lost, 1);
		if (call.took)
			deregistered(&call, false);
	}
	return 0;
}

SEC("uretprobe")
int control_return(struct pt_regs *ctx)
{
	struct control_thread thread = control_this_thread();
	struct control_flight *call = bpf_map_lookup_elem(&control_flights, &thread);
	bool success = !(__s32)PT_REGS_RC(ctx); /* of those that return an int */

	if (!call || call->call != bpf_get_attach_cookie(ctx) ||
	    call->sp + CONTROL_RETURN_POPS != PT_REGS_SP(ctx))
		return 0;
	switch (call->call) {
	case control_create_qp:
		created_qp(call, PT_REGS_RC(ctx));
		break;
	case control_modify_qp:
	case control_query_qp:
		if (success)
			changed_qp(call);
		break;
	case control_destroy_qp:
		if (success)
			destroyed_qp(call);
		break;
	case control_register:
	case control_register_dmabuf:
	case control_register_extended:
		registered(call, PT_REGS_RC(ctx));
		break;
	case control_reregister:
		reregistered(call, success);
		break;
	case control_deregister:
		deregistered(call, success);
		break;
	}
	bpf_map_delete_elem(&control_flights, &thread);
	return 0;
}
