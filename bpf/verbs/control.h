/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The RDMA control path: calls of libibverbs that begin and end queue pairs and memory regions, and what is known of these.
 *
 * exporter/verbs/control.py has the functions and gives the maps their meaning. Layouts are those of
 * infiniband/verbs.h, the same since rdma-core 17. */
#pragma once
#include <stddef.h>
#include "flight.h"
#include "qp.h"

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
SHARED(qp_states, struct state_key, __u64, 8192); /* changes to it by ibv_modify_qp */

enum region_memory { region_host, region_dmabuf } __attribute__((packed));

struct region {
	__u64 bytes;
	enum region_memory memory;
	__u8 zero[7];
};
SHARED(regions, struct control_key, struct region, 65536);

struct region_key {
	__u32 tgid;
	enum region_memory memory;
	__u8 zero[3];
	struct verbs_device device;
};
/* Registered bytes are added - removed, and not known with any untracked. */
struct region_total {
	__u64 added;
	__u64 removed;
	__u64 untracked; /* registered while `regions` had no room */
	__u64 registrations;
	__u64 reregistrations;
	__u64 deregistrations;
	__u64 unmatched; /* deregistrations of what was not seen registered: the memory is not known */
};
SHARED(region_totals, struct region_key, struct region_total, 4096);
/* By process: calls that may have changed its registered bytes, and were not seen to return or found no room for totals. */
MAP(memory_missed, HASH, __u32, __u64, 4096);

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
FLIGHTS(control_flights, struct control_flight, 4096)

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
#define MOST_REGION                                                                                          \
	(1ull << 57) /* an address space; a region of more is of all there is (implicit on-demand paging) */
#define MR_INIT_COMP_MASK 12 /* struct ibv_mr_init_attr */
#define MR_MASK_FD 4	     /* IBV_REG_MR_MASK_FD */

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
		remove_shared(qp_controls, key.tgid, &key);
	known = shared_row(qp_controls, key.tgid, &key, &none);
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
