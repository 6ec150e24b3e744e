/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A probe that judges a call where it returns: which return belongs to which entry, and which calls a probed function
 * made itself. For functions that block or are rare, since a call takes two traps (CONTRIBUTING.md walks through one).
 *
 *	SEC("uprobe") int on_enter(...)     { struct call call; if (enter(ctx, &call)) count that it was called; }
 *	SEC("uretprobe") int on_return(...) { struct call call; if (leave(ctx, &call)) count what it did; }
 *
 * The probe declares `enum api` with the names of its functions, from which the exporter makes its table
 * (exporter/call_collector.py), and FORGET() for what it keeps besides counts. */
#pragma once
#include "probe.h"

/* Travels as the uprobe's 64-bit cookie. */
struct cookie {
	__u8 api;     /* of the probe's enum */
	__u8 library; /* its number in `returning` */
	__u8 zero[6];
};
RETURNING()
ENDED()

struct thread {
	__u32 tgid;
	__u32 tid;
};
struct call {
	struct thread thread;
	struct cookie cookie;
	__u64 sp;
	__u64 ip;
	__u64 start_ns;
	__u64 arguments[3];
	__u32 returning; /* of the library, when the call began; 0: its return is not seen */
	__u32 zero;
};
#define IN_FLIGHT 8192
MAP(in_flight, HASH, struct thread, struct call, IN_FLIGHT);
__u64 flights = 0; /* its rows */
const volatile __u64 flights_most = IN_FLIGHT;
MAP(process_flights, HASH, __u32, __u64, 4096); /* its rows of each process */
MAP(hits, PERCPU_ARRAY, __u32, __u64, 256);	/* by api, of all processes */

struct error_key {
	__u32 tgid;
	__s32 code;
	__u8 api;
	__u8 zero[3];
};
struct error {
	__u64 calls;
	__u64 last_ns;
};
MAP(errors, HASH, struct error_key, struct error, 4096);

/* Slot 0 holds up to 1 us, slot i up to 2^i us, the last one all above 268 s. */
#define TIME_SLOTS 30
struct duration {
	__u64 sum_ns;
	__u64 slots[TIME_SLOTS];
};

COOKIE()

static __always_inline struct thread this_thread(void)
{
	__u64 id = bpf_get_current_pid_tgid();

	return (struct thread){.tgid = id >> 32, .tid = id};
}

/* Whether the return of a remembered call is seen: return probes may have been detached since it began. */
static __always_inline bool is_current(const struct call *call)
{
	return call->returning && call->returning == returning_of(call->cookie.library);
}

/* Whether a probed function made this call, directly or by a jump that leaves the stack as it was. One that never
 * returned (longjmp, a cancelled thread) is recognised by a stack that is shorter now. */
static __always_inline bool nested(const struct call *call)
{
	const struct call *outer = bpf_map_lookup_elem(&in_flight, &call->thread);

	return outer && is_current(outer) &&
	       (outer->sp > call->sp || (outer->sp == call->sp && outer->ip != call->ip)) &&
	       may_return(outer->sp);
}

/* A row of an earlier call of the thread, which did not return, is this one's now. */
static __always_inline bool put_flight(const struct call *call)
{
	static const __u64 none;
	__u64 *rows;

	if (!bpf_map_update_elem(&in_flight, &call->thread, call, BPF_EXIST))
		return true;
	rows = lookup_or_init(process_flights, &call->thread.tgid, &none);
	if (!rows || !has_share(*rows, flights, flights_most) ||
	    insert(in_flight, &call->thread, call, BPF_NOEXIST))
		return false;
	add(rows, 1);
	add(&flights, 1);
	return true;
}

static __always_inline void remove_flight(const struct thread *thread)
{
	if (bpf_map_delete_elem(&in_flight, thread))
		return;
	add(&flights, -1);
	subtract_row(bpf_map_lookup_elem(&process_flights, &thread->tgid));
	if (in_flight_full_tick)
		in_flight_full_tick = 0;
}

/* At an entry: what is known of the call, kept for its return where that is seen. False for a call that a probed
 * function made: what it does is counted there. */
static __always_inline bool enter(struct pt_regs *ctx, struct call *call)
{
	struct cookie cookie = cookie_of(ctx);
	__u32 api = cookie.api;
	__u64 *seen = bpf_map_lookup_elem(&hits, &api);

	if (seen)
		add(seen, 1);
	*call = (struct call){
	    .thread = this_thread(),
	    .cookie = cookie,
	    .sp = PT_REGS_SP(ctx),
	    .ip = PT_REGS_IP(ctx),
	    .arguments = {PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx)},
	    .returning = returning_of(cookie.library),
	};
	if (nested(call))
		return false;
	if (!call->returning)
		return true;
	call->start_ns = bpf_ktime_get_ns();
	if (!put_flight(call)) {
		add(&in_flight_lost, 1);
		call->returning = 0;
	}
	return true;
}

/* At a return: the call as enter() saw it. False for one that it did not see, or that a probed function made. */
static __always_inline bool leave(struct pt_regs *ctx, struct call *call)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	const struct call *entered = bpf_map_lookup_elem(&in_flight, &thread);

	if (!entered || entered->cookie.api != cookie.api || entered->sp + RETURN_POPS != PT_REGS_SP(ctx) ||
	    entered->returning != returning_of(cookie.library))
		return false;
	*call = *entered;
	remove_flight(&thread);
	return true;
}

static __always_inline void count_duration(struct duration *duration, __u64 ns)
{
	__u32 slot = log2_slot((ns + 999) / 1000, 0, TIME_SLOTS);

	if (slot >= TIME_SLOTS) /* for the verifier */
		return;
	add(&duration->sum_ns, ns);
	add(&duration->slots[slot], 1);
}

static __always_inline void count_error(const struct call *call, __s32 code)
{
	static const struct error none;
	struct error_key key = {.tgid = call->thread.tgid, .code = code, .api = call->cookie.api};
	struct error *error = lookup_or_init(errors, &key, &none);

	if (!error)
		return;
	add(&error->calls, 1);
	error->last_ns = bpf_ktime_get_ns();
}

THREAD_END
int on_thread_end(void *ctx __attribute__((unused)))
{
	struct thread thread = this_thread();

	if (bpf_map_lookup_elem(&in_flight, &thread))
		remove_flight(&thread);
	return 0;
}

static long drop_flight(void *map, const struct thread *at, const void *value, void *context)
{
	struct thread key = *at;

	(void)map, (void)value, (void)context;
	if (has_ended(key.tgid))
		remove_flight(&key);
	return 0;
}

static long drop_process(void *map, const __u32 *at, const void *value, void *context)
{
	__u32 tgid = *at;

	(void)map, (void)value, (void)context;
	bpf_map_delete_elem(&process_flights, &tgid);
	return 0;
}

/* FORGET() is the object's program `forget`: rows of processes that have ended are dropped from calls in flight, with
 * FORGET(map) from a map of the probe's own too. */
#define FORGET(...)                                                                                          \
	SEC("raw_tp")                                                                                        \
	int forget(void *ctx)                                                                                \
	{                                                                                                    \
		(void)ctx;                                                                                   \
		bpf_for_each_map_elem(&in_flight, drop_flight, NULL, 0);                                     \
		bpf_for_each_map_elem(&ended, drop_process, NULL, 0);                                        \
		__VA_OPT__(drop_ended(__VA_ARGS__);)                                                         \
		return 0;                                                                                    \
	}
