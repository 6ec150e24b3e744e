/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the CUDA programs share: what the maps hold. exporter/collectors/cuda.py gives the maps their meaning. */
#pragma once
#include "functions.h"

/* `device` in keys: 0 while the process has used one device at most, else the ordinal + 1 of the device of the
 * thread's current context, or of the memory's pool or stream, or this where that is not known, or host memory. */
#define DEVICE_UNKNOWN 0xffff

struct call_key {
	__u32 tgid;
	__u16 api;
	__u16 device;
};

/* last_ns is right to a tick of the kernel's clock (10 ms at most): reading the time would be a third of a hit. `marks` is
 * a struct launch_marks: per-CPU fields are 64 bits wide. */
struct launch {
	__u64 calls;
	__u64 last_ns;
	__u64 marks;
};
struct launch_marks {
	__u32 tick;   /* of last_ns, never 0 */
	__u32 chosen; /* the launch of the row that is sampled next, from 1; 0: not drawn yet */
};
MAP(launches, PERCPU_HASH, struct call_key, struct launch, 2048);
MAP(calls, HASH, struct call_key, __u64, 16384);

/* Of these, those that were counted in windows, and cost less: without a device, and of all processes by function. */
MAP(window_calls, HASH, struct call_key, __u64, 2048);
MAP(windows, PERCPU_ARRAY, __u32, __u64, 256);

struct error_key {
	__u32 tgid;
	__u16 api;
	__u16 device;
	__s32 code;
};
struct error {
	__u64 calls;
	__u64 last_ns;
};
MAP(errors, HASH, struct error_key, struct error, 4096);
#define FAILURES 128 /* rows of a process: libraries of its own may return any code */

/* Slot 0 holds waits up to 2^-20 s (0.95 us), slot i up to 2^(i-20) s, the last one all above 2^16 s. */
#define WAIT_FIRST (-20)
#define WAIT_SLOTS 38
struct wait {
	__u64 sum_ns;
	__u64 slots[WAIT_SLOTS];
};
MAP(waits, HASH, struct call_key, struct wait, 4096);

/* What a process holds: allocations by address, physical memory by handle, and where handles are mapped. */
enum thing { thing_allocation, thing_handle, thing_mapping } __attribute__((packed));

struct live_key {
	__u32 tgid;
	enum layer layer;
	enum thing thing;
	__u16 zero;
	__u64 address;
};

#define NO_CONTEXT (~0ull) /* the owner of what no context takes with it */

struct live {
	__u64 bytes;
	/* Of an allocation: the context that takes it with it, or NO_CONTEXT; of a mapping: its handle; of a handle: where
	 * it is mapped whole, once, by a mapping without a row; 0 if none or unknown. */
	__u64 owner;
	__u64 since_ns; /* distinguishes a reused handle from the one before; a mapping has its handle's */
	__u32 refs;	/* of a handle: creation and retentions not yet released */
	__u32 mappings; /* of a handle */
	enum memory memory;
	__u8
	    doubtful; /* a context has ended that may have taken it along, or it may be a graph's and no memory */
	__u16 device;
	__u32 stack; /* the number of the stack that allocated it, 0 if none was taken */
};
#define LIVE 262144
MAP(live, HASH, struct live_key, struct live, LIVE);
__u64 live_rows = 0;
const volatile __u64 live_most = LIVE;

/* The tables of which each process has a share, as its library may have any number of devices and contexts. */
enum table {
	table_launches,
	table_calls,
	table_errors,
	table_waits,
	table_totals,
	table_copies,
	table_primaries,
	table_context_devices,
	table_pools,
	table_streams,
	table_captured,
	TABLES
};

/* What a process has of the tables that all share, and its spans of this second. */
struct process {
	__u64 live;   /* rows of `live` */
	__u64 blocks; /* of `ranges` */
	__u64 rows[TABLES];
	__u64 flights; /* of `in_flight` */
	__u64 unsure;  /* whether it has host memory that is in no range */
	__u64 missed;  /* execs, and calls that may have changed what it holds without a seen end */
	struct rate spans;
};
MAP(processes, HASH, __u32, struct process, 4096);

struct total_key {
	__u32 tgid;
	enum layer layer;
	enum memory memory;
	__u16 device;
};

/* Bytes, but for the last. In use is allocated - freed - implicit - untracked, and unknown while some are doubtful. */
struct total {
	__u64 allocated;
	__u64 freed;
	__u64 implicit;	 /* freed by something else than a call that frees */
	__u64 untracked; /* allocated without a row of `live`: their frees will not be seen */
	__u64
	    doubtful; /* in rows, but perhaps gone with a context, or of a graph; 1 for ever after a capture that
				* was not seen to begin */
	__u64 unmatched_frees; /* frees of what was not seen allocated */
};
MAP(totals, HASH, struct total_key, struct total, 8192);

struct copy_key {
	__u32 tgid;
	enum direction direction;
	enum host host;
	__u16 device;
};
MAP(copies, HASH, struct copy_key, __u64, 8192);
__u64 copies_unread = 0; /* copies with a description that could not be read */

/* Processes of which every call was seen, entered by the exporter: host memory not seen pinned is pageable there. */
MAP(covered, HASH, __u32, __u8, 4096);
ENDED()

struct thread {
	__u32 tgid;
	__u32 tid;
	__u64 layer; /* a runtime call makes driver calls: one of each may be in flight */
};

#define ARGUMENTS 5 /* as many as anything here looks at */
struct flight {
	struct cookie cookie;
	__u64 sp;
	__u64 start_ns;
	__u64 arguments[ARGUMENTS];
	struct live taken; /* by a free: what it will free if it succeeds */
	__u32 kept;	   /* for the thread's next call, with an sp of 0 until then */
	__u32 returning;   /* what returning_at() was when the call began */
};
#define IN_FLIGHT 16384
MAP(in_flight, HASH, struct thread, struct flight, IN_FLIGHT);
__u64 flights = 0;	 /* its rows */
__u64 memory_missed = 0; /* the sum of `missed` of all processes */
const volatile __u64 flights_most = IN_FLIGHT;

struct span {
	__u64 start_ns;
	__u64 end_ns;
	__u64 bytes;
	__u64 address;
	__u64 context;
	__u32 tgid;
	__u32 tid;
	__s32 code;
	__u16 api;
	enum memory memory;
	enum direction direction;
	char comm[16]; /* the thread's */
	enum host host;
	__u8 zero;
	__u16 device; /* ordinal + 1, 0 if unknown; or DEVICE_UNKNOWN */
	__u32 unused;
};
EVENTS(cuda_spans, struct span, 256 * 1024);
__u64 cuda_spans_woken_ns = 0;
__u64 spans_limited = 0; /* not sent, to keep to spans_per_second */

/* A context ended, and took what was allocated in it before. */
struct context_end {
	__u64 context;
	__u64 before_ns;
	__u32 tgid;
	__u32 zero;
};
EVENTS(context_ends, struct context_end, 4096);

/* While profiles are on, bpf/stacks/ puts the number of the stack here when a call begins, and an allocation is sent
 * with it: one that succeeded, and with `failed` one for which there was no memory. The programs are without that while
 * they are off. */
const volatile bool profiled = false;
MAP(stack_ids, HASH, struct thread, __u32, 1);
struct allocation {
	__u64 bytes;
	__u32 tgid;
	__u32 stack;
	enum layer layer;
	enum memory memory;
	__u16 device;
	__u16 api;
	__u8 failed;
	__u8 zero;
};
EVENTS(allocations, struct allocation, 4096);
__u64 allocations_woken_ns = 0;

/* One launch in so many, of one layer, goes on to the program of bpf/stacks/ that takes its stack; 0: none. A second
 * program at each launch would cost 100 times what the choice does. */
const volatile __u32 launches_every = 0;
const volatile enum layer launches_of = layer_driver;
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} launch_stacks SEC(".maps");

const volatile __u64 allocation_span_bytes = 1ull << 26;
const volatile __u64 copy_span_bytes = 1ull << 26;
const volatile __u64 wait_span_ns = 100000000;
const volatile __u64 spans_per_second = 100; /* of a process; of all together ten times that */
