/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "soft.h"

#define VERSION (RELEASE == 11 ? 11070 : RELEASE * 1000)

static __typeof__(&cuGetProcAddress_v2) find;
__thread int own_default;
static cudaError_t refused; /* what cuInit() has returned */

static void connect_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (library)
		find = (__typeof__(find))dlsym(library, "cuGetProcAddress_v2");
}

void *driver(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *got = NULL;

	pthread_once(&once, connect_driver);
	if (find)
		find(name, &got, VERSION, own_default ? PER_THREAD_DEFAULT_STREAM : 0, NULL);
	if (!got) {
		fprintf(stderr, "softgpu: no %s: LD_LIBRARY_PATH has to name the folder of the soft libcuda.so.1\n", name);
		abort();
	}
	return got;
}

static void after_fork(void)
{
	if (!refused)
		refused = NOT_INITIALIZED;
}

static void initialize(void)
{
	refused = D(cuInit)(0);
	pthread_atfork(NULL, NULL, after_fork);
}

cudaError_t initialized(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, initialize);
	return refused;
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
	COUNT;
	*version = VERSION;
	return COUNTED(SUCCESS);
}

API cudaError_t cudaDriverGetVersion(int *version)
{
	COUNT; /* also before cuInit() */
	return COUNTED(kept(D(cuDriverGetVersion)(version)));
}

/* By default what a caller with this default stream means. */
static cudaError_t entry(const char *name, void **to, unsigned version, unsigned long long flags, int *status)
{
	return kept(initialized() ?: find(name, to, version, flags ?: own_default ? PER_THREAD_DEFAULT_STREAM : 0, status));
}

#define BOTH(name, parameters, ...)                                                                          \
	API cudaError_t name parameters                                                                      \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(__VA_ARGS__);                                                                 \
	}                                                                                                    \
	OWN_DEFAULT(name##_ptsz, parameters, __VA_ARGS__)

BOTH(cudaGetDriverEntryPointByVersion,
     (const char *name, void **to, unsigned version, unsigned long long flags, int *status),
     entry(name, to, version, flags, status))
#if RELEASE == 11
BOTH(cudaGetDriverEntryPoint, (const char *name, void **to, unsigned long long flags), entry(name, to, VERSION, flags, NULL))
#else
BOTH(cudaGetDriverEntryPoint, (const char *name, void **to, unsigned long long flags, int *status),
     entry(name, to, VERSION, flags, status))
#endif
