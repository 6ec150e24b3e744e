/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* NCCL and RCCL calls: counted where they begin, timed and told one by one where they return. Probes that run at one
 * place run in no certain order: neither on_call nor on_enter needs the other to have run. */
#include "nccl_lag.h"
#include "nccl_spans.h"

/* What a collective moves. AlltoAllv counts what goes to each rank; its bus bytes leave out what stays. */
static __always_inline void count_bytes(struct pt_regs *ctx, struct cookie cookie,
					const struct communicator *on, struct calls *calls)
{
	__u64 at = argument(ctx, cookie.count_at), count = at, own = 0, bytes;
	bool vector = cookie.effect == effect_vector;
	__s32 type = argument(ctx, vector ? cookie.comm_at - 1 : cookie.count_at + 1);
	bool known = type_bytes(type);

	if (vector && on) {
		count = sum_counts(at, on->who.nranks);
		own = read_u64(at + 8ull * on->who.rank);
	}
	if (!known || (vector && (!on || count == UNREAD))) {
		add(&calls->unsized, 1);
		return;
	}
	bytes = count * type_bytes(type);
	add(&calls->bytes, bytes);
	if (vector)
		add(&calls->bus_bytes, bytes - own * type_bytes(type));
	else if (on)
		add(&calls->bus_bytes, bus_bytes(cookie.kind, bytes, on->who.nranks));
}

static __always_inline struct calls *count_call(__u32 tgid, enum kind kind, __u64 now)
{
	static const struct calls none;
	struct call_key key = {.tgid = tgid, .kind = kind};
	struct calls *counted = lookup_or_init(calls, &key, &none);

	if (!counted)
		return NULL;
	add(&counted->calls, 1);
	counted->last_ns = now;
	return counted;
}

/* Numbers a call, and compares when it was made with when others of this number were. */
static __always_inline void number(__u32 tgid, struct communicator *on, struct cookie cookie, __s32 peer,
				   bool captured, __u64 now)
{
	__u64 *numbered = calls_so_far(tgid, on, cookie.kind, peer, captured);

	if (!numbered)
		return;
	if (cookie.kind < kind_Send && !captured && origin_of(on, cookie.kind, captured))
		note_arrival(tgid, on, cookie.kind, *numbered, now);
	add(numbered, 1);
}

static __always_inline void count_collective(struct pt_regs *ctx, __u32 tgid, struct cookie cookie,
					     const struct caller *caller)
{
	struct communicator *on = communicator_at(tgid, cookie, argument(ctx, cookie.comm_at));
	__s32 peer = cookie.peer_at == NO_ARGUMENT ? -1 : argument(ctx, cookie.peer_at);
	__u64 now = bpf_ktime_get_ns();
	struct calls *calls = count_call(tgid, cookie.kind, now);

	if (on) {
		on->last_ns = now;
		settle(on, cookie, argument(ctx, cookie.comm_at), caller && caller->depth);
		if (!discarded(cookie, argument(ctx, cookie.count_at)))
			number(tgid, on, cookie, peer, caller && caller->capturing, now);
	}
	if (!calls)
		return;
	if (!on)
		add(&calls->anonymous, 1);
	if (cookie.effect != effect_signal)
		count_bytes(ctx, cookie, on, calls);
}

static __always_inline struct caller *caller_of(const struct thread *thread)
{
	static const struct caller none;

	return lookup_or_init(callers, thread, &none);
}

static long doubt(void *map, const struct comm_key *at, struct communicator *on, const __u32 *tgid)
{
	(void)map;
	if (at->tgid == *tgid && on->origin == origin_library)
		on->unsure = 1;
	return 0;
}

/* A group ends whose beginning was not seen: what was numbered in it may be wrong. */
static __always_inline void doubt_numbers(__u32 tgid)
{
	bpf_for_each_map_elem(&communicators, doubt, &tgid, 0);
	asm volatile(""); /* or clang makes one call of this and another map's, which Linux 6.1 refuses */
}

static __always_inline void change_group(const struct thread *thread, enum effect effect)
{
	struct caller *caller = caller_of(thread);

	if (!caller)
		return;
	if (effect == effect_capture_begin)
		caller->capturing = 1;
	else if (effect == effect_capture_end)
		caller->capturing = 0;
	else if (effect == effect_group_start && !caller->depth++)
		caller->group_ns = bpf_ktime_get_ns();
	else if (effect >= effect_group_end && !caller->depth)
		doubt_numbers(thread->tgid);
	else if (effect >= effect_group_end && !--caller->depth && effect == effect_group_end)
		count_call(thread->tgid, kind_GroupEnd, bpf_ktime_get_ns());
}

static long drop_peer(void *map, const struct peer_key *at, const void *value, const struct peer_key *of)
{
	struct peer_key key = *at;

	(void)map, (void)value;
	if (key.tgid == of->tgid && key.since_ns == of->since_ns)
		bpf_map_delete_elem(&peers, &key);
	return 0;
}

/* A communicator ends: what is at its address next is another. */
static __always_inline void part(__u32 tgid, __u64 address)
{
	struct comm_key key = {.tgid = tgid, .address = address};
	struct communicator *known = bpf_map_lookup_elem(&communicators, &key);
	struct peer_key of = {.tgid = tgid};

	if (!known)
		return;
	of.since_ns = known->since_ns;
	bpf_map_delete_elem(&communicators, &key);
	bpf_for_each_map_elem(&peers, drop_peer, &of, 0);
}

SEC("uprobe")
int on_call(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	__u32 api = cookie.api;
	__u64 *seen = bpf_map_lookup_elem(&hits, &api);
	const struct caller *caller = bpf_map_lookup_elem(&callers, &thread);

	if (seen)
		add(seen, 1);
	if (nested(ctx, caller))
		return 0;
	switch (cookie.effect) {
	case effect_collective:
	case effect_vector:
	case effect_signal:
		count_collective(ctx, thread.tgid, cookie, caller);
		break;
	case effect_group_start:
	case effect_group_end:
	case effect_group_drop:
	case effect_capture_begin:
	case effect_capture_end:
		change_group(&thread, cookie.effect);
		break;
	case effect_end:
		part(thread.tgid, argument(ctx, cookie.comm_at));
		break;
	default:
		break;
	}
	return 0;
}

/* Serves on_return. */
SEC("uprobe")
int on_enter(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	struct caller *caller = caller_of(&thread);
	struct flight *call;

	if (!caller || nested(ctx, caller))
		return 0;
	call = &caller->call;
	*call = (struct flight){.cookie = cookie, .ip = PT_REGS_IP(ctx), .type = -1, .peer = -1};
	call->second = PT_REGS_PARM2(ctx);
	if (cookie.comm_at != NO_ARGUMENT)
		call->comm = argument(ctx, cookie.comm_at);
	if (cookie.peer_at != NO_ARGUMENT)
		call->peer = argument(ctx, cookie.peer_at);
	if (spans_per_second && cookie.kind < COLLECTIVES)
		call->stream = argument(ctx, cookie.comm_at + 1);
	if (cookie.effect == effect_vector)
		call->type = argument(ctx, cookie.comm_at - 1);
	if (cookie.effect == effect_collective) {
		call->count = argument(ctx, cookie.count_at);
		call->type = argument(ctx, cookie.count_at + 1);
	}
	if (cookie.effect == effect_end)
		read_identity(layout_of(cookie), call->comm, &call->who);
	call->start_ns = bpf_ktime_get_ns();
	call->sp = PT_REGS_SP(ctx);
	return 0;
}

#define MOST_CREATED 64

/* ncclSuccess, or ncclInProgress: what the call made is there, though it may not be ready. */
static __always_inline void apply(__u32 tgid, struct flight *call)
{
	switch (call->cookie.effect) {
	case effect_create:
		call->comm = read_u64(call->comm); /* from here on the communicator itself */
		created(tgid, call->cookie, call->comm);
		break;
	case effect_create_many:
		for (__u32 i = 0; i < MOST_CREATED && i < (__u32)call->second; i++)
			created(tgid, call->cookie, read_u64(call->comm + 8 * i));
		break;
	default:
		break;
	}
}

#define IN_PROGRESS 7

/* The library tells an error each time it is asked: it is counted when it is told first. */
static __always_inline void note_async_error(__u32 tgid, const struct flight *call, __u64 now)
{
	struct comm_key key = {.tgid = tgid, .address = call->comm};
	struct communicator *on = bpf_map_lookup_elem(&communicators, &key);
	__u32 code = read_u64(call->second);

	if (!on) /* one that has made no call yet */
		on = communicator_at(tgid, call->cookie, call->comm);
	if (!on || on->async_error == code || code == IN_PROGRESS)
		return;
	on->async_error = code;
	if (code)
		count_error(tgid, call->cookie.api, code, now);
}

/* The library refused the call: the next one has its number, as it has for the library. */
static __always_inline void take_back(__u32 tgid, struct communicator *on, const struct flight *call,
				      bool captured)
{
	__u64 *numbered = calls_so_far(tgid, on, call->cookie.kind, call->peer, captured);

	if (numbered && *numbered)
		add(numbered, -1);
}

SEC("uretprobe")
int on_return(struct pt_regs *ctx)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	struct caller *caller = bpf_map_lookup_elem(&callers, &thread);
	struct flight *call = &caller->call;
	__s32 code = PT_REGS_RC(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct communicator *on;
	struct comm_key key;
	bool inner;

	if (!caller || !call->sp || call->cookie.api != cookie.api ||
	    call->sp + RETURN_POPS != PT_REGS_SP(ctx))
		return 0;
	key = (struct comm_key){.tgid = thread.tgid, .address = call->comm};
	if (!code || code == IN_PROGRESS)
		apply(thread.tgid, call);
	else
		count_error(thread.tgid, cookie.api, code, now);
	inner = cookie.effect == effect_group_end && caller->depth;
	if (cookie.effect == effect_async_error) {
		if (!code)
			note_async_error(thread.tgid, call, now);
	} else if (!inner && cookie.kind != kind_none) {
		count_duration(thread.tgid, cookie.kind, now - call->start_ns);
		on = cookie.kind < COLLECTIVES && !discarded(cookie, call->count)
			 ? bpf_map_lookup_elem(&communicators, &key)
			 : NULL;
		if (on)
			confirm(on, cookie, call->comm);
		send_span(&thread, caller, code, now);
		if (on && code && code != IN_PROGRESS)
			take_back(thread.tgid, on, call, caller->capturing);
	}
	call->sp = 0;
	return 0;
}

static long drop_caller(void *map, const struct thread *at, const void *value, void *unused)
{
	struct thread key = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(key.tgid))
		bpf_map_delete_elem(&callers, &key);
	return 0;
}

static long drop_communicator(void *map, const struct comm_key *at, const void *value, void *unused)
{
	struct comm_key key = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(key.tgid))
		bpf_map_delete_elem(&communicators, &key);
	return 0;
}

static long drop_peer_of_ended(void *map, const struct peer_key *at, const void *value, void *unused)
{
	struct peer_key key = *at;

	(void)map, (void)value, (void)unused;
	if (has_ended(key.tgid))
		bpf_map_delete_elem(&peers, &key);
	return 0;
}

/* Processes have ended, those in `ended`: a pid may be another's next. The counts are for the exporter to delete. */
SEC("raw_tp")
int forget(void *ctx __attribute__((unused)))
{
	bpf_for_each_map_elem(&callers, drop_caller, NULL, 0);
	bpf_for_each_map_elem(&communicators, drop_communicator, NULL, 0);
	bpf_for_each_map_elem(&peers, drop_peer_of_ended, NULL, 0);
	return 0;
}
