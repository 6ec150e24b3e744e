/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A probe that judges a call where it returns: which return belongs to which entry, and which calls a probed function
 * made itself. For functions that block or are rare, since a call takes two traps (CONTRIBUTING.md walks through one).
 *
 *	static void entered(const struct call *call)                { count that it was called; }
 *	static void returned(const struct call *call, __s64 result) { count what it did; }
 *	AT_CALLS(entered, returned)
 *
 * The probe declares `enum api` with the names of its functions, from which the exporter makes its table
 * (exporter/call_collector.py), and FORGET() for what it keeps besides counts. */
#pragma once
#include "flight.h"

/* Travels as the uprobe's 64-bit cookie. */
struct cookie {
	__u8 api;     /* of the probe's enum */
	__u8 library; /* its number in `returning` */
	__u8 zero[6];
};
RETURNING()
ENDED()

struct call {
	struct thread thread;
	struct cookie cookie;
	__u64 sp;
	__u64 ip;
	__u64 start_ns;
	__u64 arguments[3];
	__u32 returning; /* of the library, when the call began; 0: its return is not seen */
	__u32 device;	 /* for keys, in a probe that follows devices */
};
FLIGHTS(in_flight, struct call, 8192)
MAP(hits, PERCPU_ARRAY, __u32, __u64, 256); /* by api, of all processes */
struct process_hit {
	__u32 tgid;
	__u32 api;
};
MAP(process_hits, HASH, struct process_hit, __u64, 4096);

/* A probe defines SHARED_TABLES as the places of its own tables with shares, before this is included. */
#ifndef SHARED_TABLES
#define SHARED_TABLES
#endif
enum table { SHARED_TABLES table_errors, TABLES };
#include "shares.h"
SHARED(errors, struct error_key, struct error, 4096); /* a library may return any code */

COOKIE()

/* Whether the return of a remembered call is seen: return probes may have been detached since it began. */
static __always_inline bool is_current(const struct call *call)
{
	return call->returning && call->returning == returning_of(call->cookie.library);
}

/* Whether a probed function made this call. */
static __always_inline bool nested(const struct call *call)
{
	const struct call *outer = flight_of(in_flight, &call->thread);

	return outer && is_current(outer) && made_by(outer->sp, outer->ip == call->ip, call->sp);
}

/* At an entry: what is known of the call, kept for its return where that is seen. False for a call that a probed
 * function made: what it does is counted there. */
static __always_inline bool enter(struct pt_regs *ctx, struct call *call)
{
	static const __u64 none;
	struct cookie cookie = cookie_of(ctx);
	struct process_hit hit = {.tgid = this_thread().tgid, .api = cookie.api};
	__u64 *seen = bpf_map_lookup_elem(&hits, &hit.api);

	if (seen)
		add(seen, 1);
	seen = lookup_or_init(process_hits, &hit, &none);
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
	if (call->returning && is_beside(call->sp))
		call->returning = 0;
	if (!call->returning)
		return true;
	call->start_ns = bpf_ktime_get_ns();
	if (!put_flight(in_flight, &call->thread, call))
		call->returning = 0;
	return true;
}

/* At a return: the call as enter() saw it. False for one that it did not see, or that a probed function made. */
static __always_inline bool leave(struct pt_regs *ctx, struct call *call)
{
	struct cookie cookie = cookie_of(ctx);
	struct thread thread = this_thread();
	struct call *entered = flight_of(in_flight, &thread);

	if (!entered || entered->cookie.api != cookie.api || !is_return_of(entered->sp, ctx) ||
	    entered->returning != returning_of(cookie.library))
		return false;
	*call = *entered;
	end_flight(in_flight, &thread, entered);
	return true;
}

/* Nanoseconds since the call began. */
static __always_inline __u64 took(const struct call *call)
{
	return bpf_ktime_get_ns() - call->start_ns;
}

/* The programs at entry and return of each function. A probe that needs more of the registers has its own. */
#define AT_CALLS(entered, returned)                                                                          \
	UPROBE(on_enter)                                                                                     \
	{                                                                                                    \
		struct call call;                                                                            \
                                                                                                             \
		if (enter(ctx, &call))                                                                       \
			entered(&call);                                                                      \
		return 0;                                                                                    \
	}                                                                                                    \
	AT_RETURN(on_return)                                                                                 \
	{                                                                                                    \
		__s64 result = PT_REGS_RC(ctx);                                                              \
		struct call call;                                                                            \
                                                                                                             \
		if (leave(ctx, &call))                                                                       \
			returned(&call, result);                                                             \
		return 0;                                                                                    \
	}

/* What a process has at an address: OBJECTS(handles, struct filesystem, 16384) is a table of such with shares, for
 * FORGET(). */
struct object {
	__u64 address;
	__u32 tgid;
	__u32 zero;
};
#define OBJECTS(map, T, entries)                                                                             \
	SHARED(map, struct object, T, entries);                                                              \
	DROP(map, struct object)

static __always_inline struct object object_at(__u64 address)
{
	return (struct object){.address = address, .tgid = this_thread().tgid};
}

/* Requests that move bytes. */
struct io {
	__u64 requests;
	__u64 succeeded; /* of those of a known length */
	__u64 bytes;	 /* of those: moved, or submitted where the call does not wait */
	struct duration took;
};

/* `bytes` is negative if the request failed, or is not seen to return; `ns` is 0 if it is not timed. A request may name any
 * length where the caller does not know it. */
static __always_inline void add_io(struct io *to, __s64 bytes, __u64 ns)
{
	if (!to)
		return;
	add(&to->requests, 1);
	if (ns)
		add_duration(&to->took, ns);
	if ((__u64)bytes <= MOST_LENGTH) {
		add(&to->succeeded, 1);
		add(&to->bytes, bytes);
	}
}

static __always_inline void count_error(const struct call *call, __s32 code)
{
	static const struct error none;
	struct error_key key = {
	    .tgid = call->thread.tgid, .code = code, .api = call->cookie.api, .device = call->device};

	add_error(shared_row(errors, key.tgid, &key, &none), bpf_ktime_get_ns());
}

/* A probe that has ABANDON(call), defined before this is included, runs it for a call that its thread ended in; one that
 * has LEFT(thread) for each thread that ends, or had this id before it ran another program. */
THREAD_END
int on_thread_end(void *ctx __attribute__((unused)))
{
	struct thread thread = this_thread();
#ifdef ABANDON
	const struct call *call = flight_of(in_flight, &thread);

	if (call)
		ABANDON(call);
#endif
	end_thread(in_flight, &thread);
#ifdef LEFT
	LEFT(&thread);
#endif
	return 0;
}

/* A probe that has REPLACED(tgid), defined as ABANDON() is, runs it for a process that runs another program now. */
EXEC int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct thread thread = this_thread();

	thread.tid = tid_before_exec(ctx);
	end_thread(in_flight, &thread);
#ifdef LEFT
	LEFT(&thread);
#endif
#ifdef REPLACED
	REPLACED(thread.tgid);
#endif
	return 0;
}

/* FORGET() is the object's program `forget`: rows of processes that have ended are dropped from calls in flight, with
 * FORGET(drop_ended(map);) from a map of the probe's own too. */
#define FORGET(...)                                                                                          \
	SEC("raw_tp")                                                                                        \
	int forget(void *ctx)                                                                                \
	{                                                                                                    \
		(void)ctx;                                                                                   \
		drop_flights(in_flight);                                                                     \
		__VA_ARGS__                                                                                  \
		drop_ended(shares);                                                                          \
		return 0;                                                                                    \
	}
