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

	if (at > now())
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
			;
}

/* 0, 1 and 2 are the default streams, all of them the legacy one here. */
static struct stream *own(CUstream stream)
{
	return (uintptr_t)stream > 2 ? stream : NULL;
}

static uint64_t *end_of(CUstream stream)
{
	static uint64_t nowhere;

	return own(stream) ? &stream->busy_until : current() ? &current()->legacy : &nowhere;
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

void occupy(CUstream stream, uint64_t ns)
{
	uint64_t begin = now(), end = stream_end(stream);

	if (!ns)
		return;
	begin = end > begin ? end : begin;
	delay(stream, begin + ns);
	if (own(stream) ? stream->context : current())
		note_busy((own(stream) ? stream->context : current())->device, begin, begin + ns);
}

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
	static uint64_t next_id = 3;

	if (!current())
		return INVALID_CONTEXT;
	*stream = calloc(1, sizeof(**stream));
	**stream = (struct stream){.context = current(), .flags = flags, .priority = priority,
				   .id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED)};
	return SUCCESS;
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
	free(own(stream));
	return COUNTED(own(stream) ? SUCCESS : INVALID_HANDLE);
}

API CUresult cuStreamSynchronize(CUstream stream)
{
	COUNT;
	sleep_until(stream_end(stream));
	return COUNTED(SUCCESS);
}

API CUresult cuStreamQuery(CUstream stream)
{
	COUNT;
	return stream_end(stream) > now() ? NOT_READY : COUNTED(SUCCESS);
}

API CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	COUNT;
	*priority = own(stream) ? stream->priority : 0;
	return COUNTED(SUCCESS);
}

API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
	COUNT;
	*flags = own(stream) ? stream->flags : 0;
	return COUNTED(SUCCESS);
}

API CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	COUNT;
	*id = own(stream) ? stream->id : (uintptr_t)stream;
	return COUNTED(SUCCESS);
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	COUNT;
	*context = own(stream) ? stream->context : current();
	return COUNTED(SUCCESS);
}

/* The driver calls from a thread of its own and when the stream comes to it; here it is at once. */
API CUresult cuStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags)
{
	COUNT;
	(void)flags;
	callback(stream, SUCCESS, data);
	return COUNTED(SUCCESS);
}

API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data)
{
	COUNT;
	if (!captured(stream, NODE_HOST))
		function(data);
	return COUNTED(SUCCESS);
}
