/* SPDX-License-Identifier: Apache-2.0 */
/* What a test has the driver do by a call, in its own process. */
#include <errno.h>
#include <string.h>
#include <time.h>
#include "soft.h"

static uint64_t busy_until, next_wait;
static __thread struct {
	const char *failing;
	CUresult code;
	uint64_t stall;
} own;

API void standin_busy(CUstream stream, uint64_t ns)
{
	(void)stream;
	__atomic_store_n(&busy_until, now() + ns, __ATOMIC_SEQ_CST);
}

API void standin_wait(uint64_t ns)
{
	__atomic_store_n(&next_wait, ns, __ATOMIC_SEQ_CST);
}

API void standin_stall(uint64_t ns)
{
	own.stall = ns;
}

API void standin_fail(const char *name, CUresult code)
{
	own.failing = name;
	own.code = code;
}

/* What a function is to return at once, 0 if nothing. */
int ordered(const char *function)
{
	CUresult code = uninitialized(function);

	if (code)
		return code;
	if (own.stall && !strncmp(function, "cuMemAlloc", 10)) {
		struct timespec t = {own.stall / 1000000000, own.stall % 1000000000};

		own.stall = 0;
		nanosleep(&t, NULL);
	}
	return own.failing && !strcmp(own.failing, function) ? own.code : 0;
}

/* A wait of the program's for what ends then. A signal's handler may order another end. */
void wait_until(uint64_t at)
{
	uint64_t least = __atomic_exchange_n(&next_wait, 0, __ATOMIC_SEQ_CST), until;
	struct timespec t;

	if (least)
		least += now();
	do {
		until = __atomic_load_n(&busy_until, __ATOMIC_SEQ_CST);
		until = until > at ? until : at;
		until = until > least ? until : least;
		t = (struct timespec){until / 1000000000, until % 1000000000};
	} while (until && until > now() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR);
}
