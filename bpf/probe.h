/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What every probe needs. No kernel types here: an object that includes only this loads where the kernel has no BTF.
 *
 * Uprobe programs may be preempted, so per-CPU values too are changed with add(). Whatever a map had to refuse is
 * counted in a global named <map>_lost, which the exporter reads. */
#pragma once
#include <stdbool.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include "registers.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "slots.h"

char LICENSE[] SEC("license") = "GPL";

/* Of a function that the verifier checks once, not at each call. Its pointers may be NULL as far as it knows. */
#define CHECKED_ONCE __attribute__((noinline))

/* Keeps a program on the thread's kernel stack. Since Linux 6.13 programs of uprobes with more than 64 bytes of stack get
 * one for each processor ("private stack"), though they may be preempted, and the next thread on the processor overwrites
 * what the first one has there: the kernel crashes (opentelemetry-ebpf-instrumentation#3056). Programs with a tail call
 * have no private stack (check_max_stack_depth of kernel/bpf/verifier.c); this one is never reached, and the verifier
 * removes it. */
static __always_inline void use_kernel_stack(void)
{
	asm volatile("r0 = 0; if r0 == 0 goto +1; call 12" ::: "r0", "r1", "r2", "r3", "r4", "r5");
}

/* UPROBE(name) { ... } is a program with `struct pt_regs *ctx` that runs at a function's entry. */
#define UPROBE(name)                                                                                         \
	static __always_inline int name##_body(struct pt_regs *ctx);                                         \
	SEC("uprobe")                                                                                        \
	int name(struct pt_regs *ctx)                                                                        \
	{                                                                                                    \
		use_kernel_stack();                                                                          \
		return name##_body(ctx);                                                                     \
	}                                                                                                    \
	static __always_inline int name##_body(struct pt_regs *ctx)

/* A map that counts the keys it had no room for: MAP(calls, PERCPU_HASH, struct call, struct calls, 10240).
 * In per-CPU values every field is 64 bits wide: the exporter adds the copies up, and takes the greatest of fields
 * with a name that starts with last_. */
#define MAP(name, kind, K, V, entries)                                                                       \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_##kind);                                                           \
		__uint(max_entries, entries);                                                                \
		__type(key, K);                                                                              \
		__type(value, V);                                                                            \
	} name SEC(".maps");                                                                                 \
	__u64 name##_lost = 0, name##_full_tick = 0

/* A ring buffer of T that counts the records it had no room for. The kernel wants no value size for a ring buffer:
 * the loader takes the type from here and clears the size. */
#define EVENTS(name, T, bytes)                                                                               \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_RINGBUF);                                                          \
		__uint(max_entries, bytes);                                                                  \
		__type(value, T);                                                                            \
	} name SEC(".maps");                                                                                 \
	__u64 name##_lost = 0

/* The processes that ended since `forget` ran last, an object's program that is never attached: the exporter puts them
 * here, runs it, and takes them out. One walk over each map then serves them all. */
#define NO_THREADS 1
#define ENDED()                                                                                              \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_HASH);                                                             \
		__uint(max_entries, 1024);                                                                   \
		__type(key, __u32);                                                                          \
		__type(value, __u8);                                                                         \
	} ended SEC(".maps");                                                                                \
	static __always_inline bool has_ended(__u32 tgid)                                                    \
	{                                                                                                    \
		return bpf_map_lookup_elem(&ended, &tgid);                                                   \
	}                                                                                                    \
	/* Not of a process that runs another program now: its threads use their rows. */                    \
	static __always_inline bool has_no_threads(__u32 tgid)                                               \
	{                                                                                                    \
		const __u8 *how = bpf_map_lookup_elem(&ended, &tgid);                                        \
                                                                                                             \
		return how && *how == NO_THREADS;                                                            \
	}

/* The section of `on_thread_end`, which each object with rows by thread has: they go when the thread ends, wherever it
 * was. A call that it was in (a cancelled thread) never returns. */
#define THREAD_END SEC("raw_tp/sched_process_exit")

/* The section of `on_exec`, which such objects have too: a call in which another program was run never returns, and its
 * stack is gone. The thread has the process's id from then on, and had this one before. */
#define EXEC SEC("raw_tp/sched_process_exec")
static __always_inline __u32 tid_before_exec(const struct bpf_raw_tracepoint_args *ctx)
{
	return ctx->args[1];
}

/* In which libraries return probes are attached, by the number that a library's cookies carry: 0 in none, else what
 * distinguishes this time from earlier ones. Programs at entries are attached all the time, so that each call counts
 * once, and remember a call for its return only there. */
#define MOST_LIBRARIES 256
#define RETURNING()                                                                                          \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                            \
		__uint(max_entries, MOST_LIBRARIES);                                                         \
		__type(key, __u32);                                                                          \
		__type(value, __u32);                                                                        \
	} returning SEC(".maps");                                                                            \
	static __always_inline __u32 returning_of(__u8 library)                                              \
	{                                                                                                    \
		__u32 key = library, *since = bpf_map_lookup_elem(&returning, &key);                         \
                                                                                                             \
		return since ? *since : 0;                                                                   \
	}

/* The processes in which a library passes calls on to another one, where the calls count: entered by the exporter while
 * other processes use the library alone (exporter/bpf/passing.py). The upper half of a key is the library's number. */
#define PASSING()                                                                                            \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_HASH);                                                             \
		__uint(max_entries, 4096);                                                                   \
		__type(key, __u64);                                                                          \
		__type(value, __u8);                                                                         \
	} passing SEC(".maps");                                                                              \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                            \
		__uint(max_entries, MOST_LIBRARIES);                                                         \
		__type(key, __u32);                                                                          \
		__type(value, __u32);                                                                        \
	} passing_processes SEC(".maps"); /* by library: while there are none, nobody is looked up */        \
	static __always_inline bool passes_on(__u8 library)                                                  \
	{                                                                                                    \
		__u32 number = library, *processes = bpf_map_lookup_elem(&passing_processes, &number);       \
		__u64 key = (__u64)library << 32;                                                            \
                                                                                                             \
		if (!processes || !*processes)                                                               \
			return false;                                                                        \
		key |= bpf_get_current_pid_tgid() >> 32;                                                     \
		return bpf_map_lookup_elem(&passing, &key);                                                  \
	}

/* DROP() defines what drop_ended() does: it removes a map's rows of processes that have ended. K has a `tgid`. */
#define DROP(map, K)                                                                                         \
	static long drop_##map(void *unused, const K *at, const void *value, void *context)                  \
	{                                                                                                    \
		K key = *at;                                                                                 \
                                                                                                             \
		(void)unused, (void)value, (void)context;                                                    \
		if (has_ended(key.tgid))                                                                     \
			bpf_map_delete_elem(&map, &key);                                                     \
		return 0;                                                                                    \
	}
#define drop_ended(map) bpf_for_each_map_elem(&map, drop_##map, NULL, 0)

/* After the object's `struct cookie`, which travels as the uprobe's 64-bit cookie. */
#define COOKIE()                                                                                             \
	static __always_inline struct cookie cookie_of(void *ctx)                                            \
	{                                                                                                    \
		__u64 raw = bpf_get_attach_cookie(ctx);                                                      \
		struct cookie cookie;                                                                        \
                                                                                                             \
		__builtin_memcpy(&cookie, &raw, sizeof(cookie));                                             \
		return cookie;                                                                               \
	}

#define MOST_LENGTH                                                                                          \
	(1ull << 47) /* of memory: an address space. A greater length is none, and not added to a counter */

/* Reads what a process's pointer points at: false if it is not there, or not in memory just now. */
#define read_user(to, address) (!bpf_probe_read_user(to, sizeof(*(to)), (const void *)(address)))

/* The same of one word, 0 if it cannot be read. */
static __always_inline __u64 read_u64(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* The same of a length; -1 if it cannot be read. */
static __always_inline __s64 length_at(__u64 address)
{
	__s64 length;

	return read_user(&length, address) ? length : -1;
}

static __always_inline void add(__u64 *to, __u64 n)
{
	__sync_fetch_and_add(to, n);
}

/* `error` is an int, as before Linux 6.4 the upper half of what bpf_map_update_elem() returns is not that of a negative
 * number.
 *
 * A full map looks for room on the free lists of all CPUs, so after a refusal nobody tries for 25 to 250 ms: a key
 * without a value costs what one with a value does. */
#define FULL_TICKS 25

static __always_inline long insert_(void *map, const void *key, const void *value, __u64 flags,
				    __u64 *full_tick)
{
	int error;

	if (*full_tick && bpf_jiffies64() - *full_tick < FULL_TICKS)
		return -E2BIG;
	error = bpf_map_update_elem(map, key, value, flags);
	if (error == -E2BIG)
		*full_tick = bpf_jiffies64();
	return error;
}

static __always_inline void *lookup_or_init_(void *map, const void *key, const void *zero, __u64 *lost,
					     __u64 *full_tick)
{
	void *value = bpf_map_lookup_elem(map, key);

	if (value)
		return value;
	if (insert_(map, key, zero, BPF_NOEXIST, full_tick) != -E2BIG) /* another CPU may have been first */
		value = bpf_map_lookup_elem(map, key);
	if (!value)
		add(lost, 1);
	return value;
}

/* The value of a key in a MAP(), made from *zero if there was none; NULL (and counted) if the map is full. */
#define lookup_or_init(map, key, zero)                                                                       \
	((typeof(map.value))lookup_or_init_(&map, key, zero, &map##_lost, &map##_full_tick))

/* Puts a value into a MAP(): 0, or an error, which the caller counts. */
#define insert(map, key, value, flags) insert_(&map, key, value, flags, &map##_full_tick)

static __always_inline void *reserve_(void *ring, __u64 size, __u64 *lost)
{
	void *record = bpf_ringbuf_reserve(ring, size, 0);

	if (!record)
		add(lost, 1);
	return record;
}

/* The time for which a reader looks for more records by itself, in nanoseconds: exporter/bpf/events.py does for longer. */
#define LOOKS_NS 200000000

/* How to submit a record of a ring buffer with such a reader. To wake it up takes an interrupt, which costs more than most
 * programs do: so only where it may sleep, or is to hurry as a quarter of the buffer is full. */
static __always_inline __u64 wake_seldom(void *ring, __u64 now, __u64 *woken_ns)
{
	if (now - *woken_ns < LOOKS_NS &&
	    bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) < bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 4)
		return BPF_RB_NO_WAKEUP;
	*woken_ns = now;
	return BPF_RB_FORCE_WAKEUP;
}

/* Room for one record in an EVENTS() buffer, to be filled and given to bpf_ringbuf_submit; NULL (and counted) if full. */
#define reserve(ring) ((typeof(ring.value))reserve_(&ring, sizeof(*ring.value), &ring##_lost))

/* Whether a process that has so many rows of a table may have one more. So that none takes the room of all, only half of
 * the table goes to processes beyond an eighth of it. `all` counts the rows of all processes. */
static __always_inline bool has_share(__u64 rows, __u64 all, __u64 most)
{
	return rows < (most + 7) / 8 || all < most / 2;
}

/* Takes one from a count of rows, unless that is of a later program of the process, which had none of them. */
static __always_inline void subtract_row(__u64 *rows)
{
	if (rows && *rows)
		add(rows, -1);
}

struct rate {
	__u64 second, events;
};

/* Whether one more event fits into this second. CPUs that meet at the turn of a second may both start it: a few
 * events more. */
static __always_inline bool within_rate(struct rate *rate, __u64 now, __u64 per_second)
{
	if (rate->second != now / 1000000000) {
		rate->second = now / 1000000000;
		rate->events = 0;
	}
	return __sync_fetch_and_add(&rate->events, 1) < per_second;
}

/* The same with one limit an object; an event too many is counted in *over. */
static __always_inline bool within_limit(__u64 now, __u64 per_second, __u64 *over)
{
	static struct rate all;

	if (within_rate(&all, now, per_second))
		return true;
	add(over, 1);
	return false;
}
