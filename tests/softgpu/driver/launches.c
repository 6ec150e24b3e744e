/* SPDX-License-Identifier: Apache-2.0 */
#include "soft.h"

static CUresult launch(CUfunction function, CUstream stream)
{
	if (!function)
		return INVALID_HANDLE;
	if (!current())
		return INVALID_CONTEXT;
	if (!captured(stream, NODE_KERNEL))
		occupy(stream, setting("SOFTGPU_KERNEL_NS", 0));
	return SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
			    unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
	COUNT;
	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)parameters, (void)extra;
	return COUNTED(launch(function, stream));
}

API CUresult cuLaunchKernelEx(const CUlaunch *it, CUfunction function, void **parameters, void **extra)
{
	COUNT;
	(void)parameters, (void)extra;
	return COUNTED(launch(function, it->stream));
}

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
				       unsigned bz, unsigned shared, CUstream stream, void **parameters)
{
	COUNT;
	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)parameters;
	return COUNTED(launch(function, stream));
}
