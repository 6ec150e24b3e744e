/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of contexts. */
#include "soft.h"

API CUresult cuCtxGetDevice(CUdevice *device)
{
	COUNT;
	NEED_CONTEXT;
	*device = current()->device;
	return COUNTED(SUCCESS);
}

API CUresult cuCtxGetFlags(unsigned *flags)
{
	COUNT;
	NEED_CONTEXT;
	*flags = current()->flags;
	return COUNTED(SUCCESS);
}

API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
	COUNT;
	if (!context)
		NEED_CONTEXT;
	else if (!is_alive(context))
		return COUNTED(INVALID_CONTEXT);
	*version = 3020;
	return COUNTED(SUCCESS);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	COUNT;
	if (least)
		*least = LEAST_PRIORITY;
	if (greatest)
		*greatest = GREATEST_PRIORITY;
	return COUNTED(SUCCESS);
}

/* Nothing profiles. */
API CUresult cuProfilerStart(void)
{
	COUNT;
	NEED_CONTEXT;
	return COUNTED(SUCCESS);
}

API CUresult cuProfilerStop(void)
{
	COUNT;
	NEED_CONTEXT;
	return COUNTED(SUCCESS);
}

API CUresult cuCtxGetLimit(size_t *value, int limit)
{
	COUNT;
	NEED_CONTEXT;
	if (limit < 0 || limit >= 16)
		return COUNTED(INVALID_VALUE);
	*value = current()->limits[limit];
	return COUNTED(SUCCESS);
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
	COUNT;
	NEED_CONTEXT;
	if (limit < 0 || limit >= 16)
		return COUNTED(INVALID_VALUE);
	current()->limits[limit] = value;
	return COUNTED(SUCCESS);
}
