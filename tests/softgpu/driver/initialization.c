/* SPDX-License-Identifier: Apache-2.0 */
/* Without cuInit() in the process itself all but a few functions fail, also in the child of a fork after it. */
#include <pthread.h>
#include <string.h>
#include "soft.h"

enum { BEFORE, INITIALIZED, FORKED };
static int state;

static void after_fork(void)
{
	if (state == INITIALIZED && !HOLLOW)
		state = FORKED;
}

static void follow_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

API CUresult cuInit(unsigned flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	COUNT;

	if (flags)
		return COUNTED(INVALID_VALUE);
	if (state == FORKED)
		return COUNTED(NOT_INITIALIZED);
	if (!device_count())
		return COUNTED(NO_DEVICE);
	pthread_once(&once, follow_forks);
	__atomic_store_n(&state, INITIALIZED, __ATOMIC_RELAXED);
	return COUNTED(SUCCESS);
}

static int needs_none(const char *function)
{
	static const char *const names[] = {"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString",
					    "cuGetProcAddress_v2", "cuGetExportTable"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!strcmp(names[i], function))
			return 1;
	return 0;
}

CUresult uninitialized(const char *function)
{
	int initialized = HOLLOW || __atomic_load_n(&state, __ATOMIC_RELAXED) == INITIALIZED;

	return initialized || needs_none(function) ? SUCCESS : NOT_INITIALIZED;
}
