/* SPDX-License-Identifier: Apache-2.0 */
#include "soft.h"

static CUresult launch(CUfunction function, CUstream stream)
{
	if (HOLLOW)
		return SUCCESS;
	if (!function)
		return INVALID_HANDLE;
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (!captured(stream, NODE_KERNEL))
		occupy(stream, kernel_ns());
	return SUCCESS;
}

/* What is launched takes the same time with any grid, block, shared memory and parameters. */
#define SHAPE                                                                                                \
	unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream
#define UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)parameters

BOTH(cuLaunchKernel, _ptsz, (CUfunction function, SHAPE, void **parameters, void **extra),
     (UNUSED, (void)extra, launch(function, stream)))
BOTH(cuLaunchKernelEx, _ptsz, (const CUlaunch *it, CUfunction function, void **parameters, void **extra),
     ((void)parameters, (void)extra, launch(function, HOLLOW ? NULL : it->stream)))
BOTH(cuLaunchCooperativeKernel, _ptsz, (CUfunction function, SHAPE, void **parameters),
     (UNUSED, launch(function, stream)))
