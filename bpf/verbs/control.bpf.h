/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The programs of the RDMA control path, at libibverbs' own calls. Only calls that returned success count. */
#pragma once
#include "control.h"

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
	changes = shared_row(qp_states, key.tgid, &key, &none);
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
	remove_shared(extended_posts, key.tgid, &key);
	if (qp)
		remove_shared(qp_controls, key.tgid, &key);
}

static __always_inline struct region_total *region_total(const struct verbs_device *device,
							 enum region_memory memory)
{
	static const struct region_total none;
	struct region_key key = {.tgid = bpf_get_current_pid_tgid() >> 32, .memory = memory};

	__builtin_memcpy(&key.device, device, sizeof(key.device));
	return shared_row(region_totals, key.tgid, &key, &none);
}

/* A region of the whole address space has no bytes: what of it is in memory only the kernel knows. */
static __always_inline __u64 registered_bytes(const struct user_mr *mr)
{
	return mr->length <= MOST_REGION ? mr->length : 0;
}

/* From now on the registered bytes of this process are not known. */
static __always_inline void miss_memory(void)
{
	static const __u64 none;
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	__u64 *missed = lookup_or_init(memory_missed, &tgid, &none);

	if (missed)
		add(missed, 1);
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
	region.bytes = registered_bytes(&mr);
	read_verbs_device(&call->device, mr.context);
	total = region_total(&call->device, region.memory);
	if (!total) {
		miss_memory();
		return;
	}
	add(&total->registrations, 1);
	add(&total->added, region.bytes);
	if (missed) { /* its end was not seen, or it would not be here */
		add(&total->removed, missed->bytes);
		remove_shared(regions, key.tgid, &key);
	}
	if (put_shared(regions, key.tgid, &key, &region))
		add(&total->untracked, region.bytes);
}

/* The library keeps the length that it now has, also where it reports that only a part was done. */
static __always_inline void reregistered(struct control_flight *call, bool success)
{
	struct control_key key = control_key(call->arguments[0]);
	struct region *region = bpf_map_lookup_elem(&regions, &key);
	struct region_total *total;
	struct user_mr mr;
	__u64 bytes;

	if (bpf_probe_read_user(&mr, sizeof(mr), (void *)call->arguments[0]))
		return;
	read_verbs_device(&call->device, mr.context);
	total = region_total(&call->device, region ? region->memory : region_host);
	if (!total) {
		if (region)
			miss_memory();
		return;
	}
	if (success)
		add(&total->reregistrations, 1);
	bytes = registered_bytes(&mr);
	if (!region || region->bytes == bytes)
		return;
	add(&total->added, bytes);
	add(&total->removed, region->bytes);
	region->bytes = bytes;
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
	remove_shared(regions, key.tgid, &key);
}

static __always_inline void deregistered(const struct control_flight *call, bool success)
{
	struct control_key key = control_key(call->arguments[0]);
	struct region_total *total;
	long error = 0;

	if (!success) {
		if (!call->took)
			return;
		error = put_shared(regions, key.tgid, &key, &call->taken);
		if (!error)
			return;
	}
	total = region_total(&call->device, call->taken.memory);
	if (!total)
		return;
	if (error) { /* another was registered there: this one has ended; or there is no room */
		add(error == -EEXIST ? &total->removed : &total->untracked, call->taken.bytes);
		return;
	}
	add(call->took ? &total->deregistrations : &total->unmatched, 1);
	add(&total->removed, call->taken.bytes);
}

/* The return of this call will not be seen. */
static __always_inline void miss(const struct control_flight *call)
{
	if (call->call < control_register || (call->call == control_deregister && !call->took))
		return;
	if (call->took)
		deregistered(call, false);
	miss_memory();
}

UPROBE(control_enter)
{
	struct control_flight call = {.call = bpf_get_attach_cookie(ctx), .sp = PT_REGS_SP(ctx)};
	struct thread thread = this_thread();
	const struct control_flight *before = flight_of(control_flights, &thread);

	if (before &&
	    made_by(before->sp, before->call == call.call, call.sp)) /* as ibv_reg_mr does ibv_reg_mr_iova2 */
		return 0;
	call.arguments[0] = PT_REGS_PARM1(ctx);
	call.arguments[1] = PT_REGS_PARM2(ctx);
	call.arguments[2] = PT_REGS_PARM3(ctx);
	if (call.call == control_destroy_qp)
		call.life = qp_life(call.arguments[0], qp_control(call.arguments[0]));
	if (call.call == control_deregister)
		take_region(&call);
	if (is_beside(call.sp) || !put_flight(control_flights, &thread, &call))
		miss(&call);
	return 0;
}

AT_RETURN(control_return)
{
	struct thread thread = this_thread();
	struct control_flight *call = flight_of(control_flights, &thread);
	bool success = !(__s32)PT_REGS_RC(ctx); /* of those that return an int */

	if (!call || call->call != bpf_get_attach_cookie(ctx) || !is_return_of(call->sp, ctx))
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
	end_flight(control_flights, &thread, call);
	return 0;
}
