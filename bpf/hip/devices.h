/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which of a process's devices a call is of: that of its stream, else the thread's current one, which hipSetDevice sets.
 * A thread begins with device 0 (clr, hip_context.cpp).
 *
 * `device` in keys: 0 of a thread that was not seen to set its device, which is device 0 unless the thread is older than
 * the probes; else the ordinal + 1. While no process has set one, this costs a call one load. */
#pragma once
#include "functions.h"
#include "../arguments.h"

#define DEVICE_UNKNOWN 255
#define MOST_DEVICES 61	   /* of a process: more than there are in any machine */
#define OLDER (1ull << 63) /* in a set of devices: some streams were not seen when they were made */
#define STALE (1ull << 62) /* a stream may have had a row's address since */
#define SPECIAL_STREAMS 2  /* hipStreamLegacy, hipStreamPerThread: of the current device, as NULL is */
#define CONFIG_STREAM 32   /* of hipLaunchConfig_t and HIP_LAUNCH_CONFIG: where the stream is */

SHARED(places, struct thread, __u32, 16384); /* the current devices of threads */
SHARED(streams, struct object, __u32, 16384);

struct devices {
	__u64 streams; /* a bit for each device, as in keys, that a stream was made on */
	__u32 placed;  /* whether a thread has set its device */
	__u32 unsure;  /* a thread has, and found no room for it */
};
MAP(devices, HASH, __u32, struct devices, 4096);
__u64 placed_processes = 0;

static __always_inline struct devices *devices_of(__u32 tgid)
{
	static const struct devices none;

	return lookup_or_init(devices, &tgid, &none);
}

static __always_inline __u32 device_of_ordinal(__u32 ordinal)
{
	return ordinal < MOST_DEVICES ? ordinal + 1 : DEVICE_UNKNOWN;
}

/* Sets a thread's current device. */
static __noinline int place(__u32 tgid, __u32 tid, __u32 device)
{
	struct thread thread = {.tgid = tgid, .tid = tid};
	struct devices *process = devices_of(tgid);
	__u32 *row;

	if (!process)
		return 0; /* and counted */
	if (!__sync_fetch_and_or(&process->placed, 1))
		add(&placed_processes, 1);
	row = shared_row(places, tgid, &thread, &device);
	if (row)
		*row = device;
	else
		process->unsure = 1;
	return 0;
}

static __always_inline void add_streams(__u32 tgid, __u64 bits)
{
	struct devices *process = devices_of(tgid);

	if (process)
		__sync_fetch_and_or(&process->streams, bits);
}

static __always_inline void made_stream(const struct call *call)
{
	struct object key = object_at(read_u64(call->arguments[0]));
	__u32 device = call->device, *row;

	row = key.address ? shared_row(streams, key.tgid, &key, &device) : NULL;
	if (row)
		*row = device;
	add_streams(key.tgid, row && device != DEVICE_UNKNOWN ? 1ull << (device % 64) : OLDER);
}

/* Before the library does, since it may have the address for another stream before this call has returned. */
static __always_inline void forget_stream(__u64 address)
{
	struct object key = object_at(address);

	remove_shared(streams, key.tgid, &key);
}

/* What a call does to the devices of its thread or its streams is not seen. */
static __always_inline void lose_device(const struct thread *thread, enum effect effect)
{
	if (effect == effect_set_device || effect == effect_context)
		place(thread->tgid, thread->tid, DEVICE_UNKNOWN);
	if (effect == effect_stream_create || effect == effect_stream_destroy)
		add_streams(thread->tgid, STALE);
}

/* The device of a call that has just begun; `stream` is where its stream is, as in the tables of functions.h. */
static __always_inline __u32 device_of_call(struct pt_regs *ctx, __u8 stream)
{
	struct object key = object_at(0);
	struct thread thread;
	struct devices *process;
	__u32 *row, current;

	if (stream == STREAMS_SEVERAL)
		return DEVICE_UNKNOWN;
	process = placed_processes ? bpf_map_lookup_elem(&devices, &key.tgid) : NULL;
	if (!process || !process->placed)
		return 0;
	thread = this_thread();
	row = bpf_map_lookup_elem(&places, &thread);
	current = row ? *row : 0;
	if (!stream || (current < DEVICE_UNKNOWN && process->streams == 1ull << (current % 64)))
		return current;
	key.address = stream == STREAM_IN_CONFIG ? read_u64(PT_REGS_PARM1(ctx) + CONFIG_STREAM)
						 : argument(ctx, stream - STREAM_AT(0));
	if (key.address <= SPECIAL_STREAMS)
		return current;
	row = process->streams & STALE ? NULL : bpf_map_lookup_elem(&streams, &key);
	return row ? *row : DEVICE_UNKNOWN;
}

static void leave_place(const struct thread *thread)
{
	if (table_rows[table_places] && bpf_map_lookup_elem(&places, thread))
		remove_shared(places, thread->tgid, thread);
}

/* Another program has neither streams nor a thread that has set its device. */
static __always_inline void replace_devices(__u32 tgid)
{
	struct devices *process = bpf_map_lookup_elem(&devices, &tgid);

	if (!process)
		return;
	if (process->placed)
		add(&placed_processes, -1);
	process->placed = 0;
	process->streams = 0;
}

/* For `forget`. A process that runs another program now uses its rows. */
static long drop_places(void *map, const struct thread *at, const __u32 *device, void *context)
{
	struct thread key = *at;

	(void)map, (void)device, (void)context;
	if (has_no_threads(key.tgid))
		bpf_map_delete_elem(&places, &key);
	return 0;
}

static long drop_streams(void *map, const struct object *at, const __u32 *device, void *context)
{
	struct object key = *at;

	(void)map, (void)device, (void)context;
	if (has_no_threads(key.tgid))
		bpf_map_delete_elem(&streams, &key);
	return 0;
}

static long drop_devices(void *map, const __u32 *at, const struct devices *held, void *context)
{
	__u32 tgid = *at;

	(void)map, (void)context;
	if (!has_no_threads(tgid))
		return 0;
	if (held->placed)
		add(&placed_processes, -1);
	bpf_map_delete_elem(&devices, &tgid);
	return 0;
}

#define FORGET_DEVICES()                                                                                     \
	drop_ended(places);                                                                                  \
	drop_ended(streams);                                                                                 \
	drop_ended(devices)
