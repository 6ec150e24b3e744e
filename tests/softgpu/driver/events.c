/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include "soft.h"

struct event {
	unsigned flags;
	uint64_t at; /* when it happens; 0: not recorded */
	struct capture *capture; /* in which it was recorded */
	struct condition *after; /* the last one that its stream waited for then, a copy */
	CUcontext context;
	CUevent next, previous; /* of its context's */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the events of contexts */

static CUevent make(CUcontext context, unsigned flags)
{
	CUevent it = calloc(1, sizeof(*it));

	it->context = context;
	it->flags = flags;
	pthread_mutex_lock(&lock);
	it->next = context->events;
	if (it->next)
		it->next->previous = it;
	context->events = it;
	pthread_mutex_unlock(&lock);
	return it;
}

static CUresult destroy(CUevent event)
{
	if (!let_go_handle(HANDLE_EVENT, event))
		return INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	if (event->next)
		event->next->previous = event->previous;
	*(event->previous ? &event->previous->next : &event->context->events) = event->next;
	pthread_mutex_unlock(&lock);
	free(event->after);
	free(event);
	return SUCCESS;
}

void end_events(CUcontext context)
{
	while (context->events && !destroy(context->events))
		;
}

API CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	COUNT;
	NEED_CONTEXT;
	*event = hold_handle(HANDLE_EVENT, make(current(), flags));
	return COUNTED(SUCCESS);
}

/* Tests of a hollow library give others, which are not looked at where nothing is read of them. */
static int is_valid(CUevent event)
{
	return is_handle(HANDLE_EVENT, event);
}

static void follow(CUevent event, CUstream stream)
{
	struct condition *last = are_met(conditions_of(stream)) ? NULL : *conditions_of(stream);

	free(event->after);
	event->after = NULL;
	while (last && last->next)
		last = last->next;
	if (!last)
		return;
	event->after = malloc(sizeof(*last));
	*event->after = *last;
}

static CUresult record(CUevent event, CUstream stream)
{
	uint64_t end, at = now();

	if (!is_valid(event) || unusable_stream(stream))
		return INVALID_HANDLE;
	end = stream_end(stream);
	follow(event, stream);
	event->capture = capture_of(stream);
	__atomic_store_n(&event->at, end > at ? end : at, __ATOMIC_RELAXED);
	return SUCCESS;
}

BOTH(cuEventRecord, _ptsz, (CUevent event, CUstream stream), record(event, stream))

BOTH(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags),
     ((void)flags, record(event, stream)))

API CUresult cuEventQuery(CUevent event)
{
	COUNT;
	if (!is_valid(event))
		return COUNTED(INVALID_HANDLE);
	NEED_NO_CAPTURE;
	if (__atomic_load_n(&event->at, __ATOMIC_RELAXED) > now() || !are_met(&event->after))
		return COUNTED(NOT_READY);
	return COUNTED(SUCCESS);
}

API CUresult cuEventSynchronize(CUevent event)
{
	COUNT;
	if (!HOLLOW && !is_valid(event))
		return COUNTED(INVALID_HANDLE);
	NEED_NO_CAPTURE;
	if (!HOLLOW)
		wait_for_values(&event->after);
	wait_until(HOLLOW ? 0 : __atomic_load_n(&event->at, __ATOMIC_RELAXED));
	return COUNTED(SUCCESS);
}

static CUresult wait_for(CUevent event, CUstream stream)
{
	if (!is_valid(event) || unusable_stream(stream))
		return INVALID_HANDLE;
	join_capture(stream, event->capture);
	delay(stream, __atomic_load_n(&event->at, __ATOMIC_RELAXED));
	return SUCCESS;
}

BOTH(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags), ((void)flags, wait_for(event, stream)))

static CUresult elapsed(float *milliseconds, CUevent from, CUevent to)
{
	if (!is_valid(from) || !is_valid(to) || !from->at || !to->at)
		return INVALID_HANDLE;
	*milliseconds = ((double)to->at - (double)from->at) / 1e6;
	return SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
	COUNT;
	return COUNTED(elapsed(milliseconds, from, to));
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
	COUNT;
	return COUNTED(elapsed(milliseconds, from, to));
}

API CUresult cuEventDestroy_v2(CUevent event)
{
	COUNT;
	return COUNTED(destroy(event));
}
