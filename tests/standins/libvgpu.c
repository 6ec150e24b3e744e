/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for what is preloaded before the CUDA driver, as limiters of GPU memory and tracers are: it defines
 * functions of the driver, loads that at the first call, and passes calls on. */
#include <dlfcn.h>
#include <stdlib.h>
#include "../softgpu/cuda.h"

static void *real(const char *name)
{
	static void *driver;
	void *found;

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW);
	found = driver ? dlsym(driver, name) : NULL;
	if (!found)
		abort();
	return found;
}

/* No tail call: the caller's frame stays, as it does where a limiter counts what was allocated. */
#define PASS(name, parameters, arguments)                                                                    \
	CUresult name parameters                                                                             \
	{                                                                                                    \
		static CUresult(*pass) parameters;                                                           \
		volatile CUresult result;                                                                    \
                                                                                                             \
		if (!pass)                                                                                   \
			pass = (CUresult(*) parameters)real(#name);                                          \
		result = pass arguments;                                                                     \
		return result;                                                                               \
	}

PASS(cuLaunchKernel,
     (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
      unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra),
     (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
PASS(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes), (out, bytes))
PASS(cuMemFree_v2, (CUdeviceptr address), (address))
PASS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
PASS(cuStreamSynchronize, (CUstream stream), (stream))
