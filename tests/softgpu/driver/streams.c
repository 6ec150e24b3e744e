/* SPDX-License-Identifier: Apache-2.0 */
/* A stream is a time until which it is busy: kernels move it on, waits sleep until then. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "soft.h"

uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void sleep_until(uint64_t at)
{
	struct timespec t = {at / 1000000000, at % 1000000000};

	if (at && at > now())
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
			;
}

__thread int own_default;

/* 0 to 2 are the default streams: 1 is the legacy one of all threads, 2 the thread's own, and 0 one of both. */
static int is_threads(CUstream stream)
{
	return (uintptr_t)stream == 2 || (!stream && own_default);
}

static struct stream *own(CUstream stream)
{
	return (uintptr_t)stream > 2 ? stream : NULL;
}

CUdevice device_of_stream(CUstream stream)
{
	return (own(stream) ? stream->context : current())->device;
}

static uint64_t *end_of(CUstream stream)
{
	static __thread uint64_t of_thread[MAX_DEVICES];
	static uint64_t nowhere;

	if (is_threads(stream) && current())
		return &of_thread[current()->device];
	return own(stream) ? &stream->busy_until : current() ? &current()->legacy : &nowhere;
}

struct condition **conditions_of(CUstream stream)
{
	static __thread struct condition *of_thread[MAX_DEVICES];
	static struct condition *nothing;

	if (is_threads(stream) && current())
		return &of_thread[current()->device];
	return own(stream) ? &stream->conditions : current() ? &current()->conditions : &nothing;
}

uint64_t stream_end(CUstream stream)
{
	return __atomic_load_n(end_of(stream), __ATOMIC_RELAXED);
}

void delay(CUstream stream, uint64_t until)
{
	CUcontext context = own(stream) ? stream->context : current();

	if (until > stream_end(stream))
		__atomic_store_n(end_of(stream), until, __ATOMIC_RELAXED);
	if (context && until > __atomic_load_n(&context->busy_until, __ATOMIC_RELAXED))
		__atomic_store_n(&context->busy_until, until, __ATOMIC_RELAXED);
}

/* The time in which kernels run on a GPU, and in place of calls until when: streams may overlap. */
static void note_busy(int device, uint64_t begin, uint64_t end)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t until[MAX_DEVICES];

	pthread_mutex_lock(&lock);
	begin = begin > until[device] ? begin : until[device];
	if (end > begin) {
		note_gpu("busy", device, end - until[device], end - begin);
		until[device] = end;
	}
	pthread_mutex_unlock(&lock);
}

uint64_t kernel_ns(void)
{
	const char *set = variables()->set[KERNEL_NS];

	return set ? strtoull(set, NULL, 0) : 0;
}

void occupy(CUstream stream, uint64_t ns)
{
	uint64_t begin, end;

	if (!ns)
		return;
	begin = now(), end = stream_end(stream);
	begin = end > begin ? end : begin;
	delay(stream, begin + ns);
	if (own(stream) ? stream->context : current())
		note_busy((own(stream) ? stream->context : current())->device, begin, begin + ns);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the streams of contexts */
static CUstream unused; /* the memory of destroyed streams stays theirs: a call may still have one */

static void link_stream(CUstream stream, CUcontext context)
{
	stream->next = context->streams;
	if (stream->next)
		stream->next->previous = stream;
	context->streams = stream;
}

static void unlink_stream(CUstream stream)
{
	if (stream->next)
		stream->next->previous = stream->previous;
	*(stream->previous ? &stream->previous->next : &stream->context->streams) = stream->next;
}

static int within(int value, int least, int most)
{
	return value < least ? least : value > most ? most : value;
}

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
	static uint64_t next_id = 3;
	CUstream it;

	if (unusable())
		return unusable();
	pthread_mutex_lock(&lock);
	it = unused ?: calloc(1, sizeof(*it));
	if (unused)
		unused = it->next;
	*it = (struct stream){.context = current(), .flags = flags, .id = next_id++, .alive = 1,
			      .priority = within(priority, GREATEST_PRIORITY, LEAST_PRIORITY)};
	link_stream(it, current());
	*stream = hold_handle(HANDLE_STREAM, it);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

static CUresult destroy(CUstream stream)
{
	if (!let_go_handle(HANDLE_STREAM, stream))
		return INVALID_HANDLE;
	leave_capture(stream);
	pthread_mutex_lock(&lock);
	unlink_stream(stream);
	stream->alive = 0;
	stream->next = unused;
	unused = stream;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

void end_streams(CUcontext context)
{
	while (context->streams && !destroy(context->streams))
		;
}

void wait_for_streams(CUcontext context)
{
	wait_for_values(&context->conditions);
	for (CUstream it = context->streams; it; it = it->next)
		wait_for_values(&it->conditions);
}

CUresult unusable_stream(CUstream stream)
{
	return HOLLOW || !own(stream) || stream->alive ? SUCCESS : INVALID_HANDLE;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	COUNT;
	return COUNTED(create(stream, flags, 0));
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	COUNT;
	return COUNTED(create(stream, flags, priority));
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
	COUNT;
	return COUNTED(destroy(stream));
}

/* Default streams are the current context's. */
static CUresult unusable_for(CUstream stream)
{
	if (!own(stream))
		return unusable();
	return HOLLOW || is_handle(HANDLE_STREAM, stream) ? SUCCESS : INVALID_HANDLE;
}

static CUresult synchronize(CUstream stream)
{
	CUresult code = unusable_for(stream) ?: is_forbidden_for(stream) ? CAPTURE_UNSUPPORTED : SUCCESS;

	if (!code) {
		wait_for_values(conditions_of(stream));
		wait_until(stream_end(stream));
	}
	return code;
}

static CUresult query(CUstream stream)
{
	CUresult code = unusable_for(stream) ?: is_forbidden_for(stream) ? CAPTURE_UNSUPPORTED : SUCCESS;

	return code ?: stream_end(stream) > now() || !are_met(conditions_of(stream)) ? NOT_READY : SUCCESS;
}

BOTH(cuStreamSynchronize, _ptsz, (CUstream stream), synchronize(stream))
BOTH(cuStreamQuery, _ptsz, (CUstream stream), query(stream))
BOTH(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority),
     unusable_stream(stream) ?: (*priority = own(stream) ? stream->priority : 0, SUCCESS))
BOTH(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned *flags), 
     unusable_stream(stream) ?: (*flags = own(stream) ? stream->flags : 0, SUCCESS))
BOTH(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long *id),
     unusable_stream(stream) ?: (*id = own(stream) ? stream->id : (uintptr_t)stream, SUCCESS))
BOTH(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext *context),
     unusable_stream(stream) ?: (*context = own(stream) ? stream->context : current(), SUCCESS))

/* The driver calls from a thread of its own and when the stream comes to it; here it is at once. */
typedef void callback_of(CUstream, CUresult, void *);
BOTH(cuStreamAddCallback, _ptsz, (CUstream stream, callback_of *callback, void *data, unsigned flags),
     unusable_stream(stream) ?: ((void)flags, callback(stream, SUCCESS, data), SUCCESS))

static CUresult call(CUstream stream, void (*function)(void *), void *data)
{
	if (unusable_stream(stream))
		return INVALID_HANDLE;
	if (!captured(stream, NODE_HOST))
		function(data);
	return SUCCESS;
}

BOTH(cuLaunchHostFunc, _ptsz, (CUstream stream, void (*function)(void *), void *data), call(stream, function, data))
