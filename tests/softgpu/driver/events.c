/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include "soft.h"

struct event {
	unsigned flags;
	uint64_t at; /* when it happens; 0: not recorded */
};

API CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	COUNT;
	NEED_CONTEXT;
	*event = calloc(1, sizeof(**event));
	(*event)->flags = flags;
	return COUNTED(SUCCESS);
}

static CUresult record(CUevent event, CUstream stream)
{
	uint64_t end = stream_end(stream), at = now();

	__atomic_store_n(&event->at, end > at ? end : at, __ATOMIC_RELAXED);
	return SUCCESS;
}

BOTH(cuEventRecord, _ptsz, (CUevent event, CUstream stream), record(event, stream))

BOTH(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags),
     ((void)flags, record(event, stream)))

API CUresult cuEventQuery(CUevent event)
{
	COUNT;
	return COUNTED(__atomic_load_n(&event->at, __ATOMIC_RELAXED) > now() ? NOT_READY : SUCCESS);
}

API CUresult cuEventSynchronize(CUevent event)
{
	COUNT;
	wait_until(HOLLOW ? 0 : __atomic_load_n(&event->at, __ATOMIC_RELAXED));
	return COUNTED(SUCCESS);
}

static CUresult wait_for(CUevent event, CUstream stream)
{
	delay(stream, __atomic_load_n(&event->at, __ATOMIC_RELAXED));
	return SUCCESS;
}

BOTH(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags), ((void)flags, wait_for(event, stream)))

static CUresult elapsed(float *milliseconds, CUevent from, CUevent to)
{
	if (!from->at || !to->at)
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
	free(event);
	return COUNTED(SUCCESS);
}
