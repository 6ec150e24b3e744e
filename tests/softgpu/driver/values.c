/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that write to memory and wait for what others write. A write is made at once, like all work here; behind a wait
 * the stream is not ready, and what is waited for after it does not happen, until memory has the value. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "soft.h"

enum { AT_LEAST, EQUAL, ANY_BIT, NOT_ALL, OPERATIONS };
enum { NODE_VALUES = 12 };

static int is_met(const struct condition *it)
{
	uint64_t found = it->bytes == 8 ? __atomic_load_n((uint64_t *)it->address, __ATOMIC_ACQUIRE)
					: __atomic_load_n((uint32_t *)it->address, __ATOMIC_ACQUIRE);

	switch (it->operation) {
	case EQUAL: return found == it->value;
	case ANY_BIT: return (found & it->value) != 0;
	case NOT_ALL: return it->bytes == 8 ? ~(found | it->value) != 0 : (uint32_t)~(found | it->value) != 0;
	default: return it->bytes == 8 ? (int64_t)(found - it->value) >= 0 : (int32_t)(found - it->value) >= 0;
	}
}

int are_met(struct condition **first)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int met;

	if (!__atomic_load_n(first, __ATOMIC_ACQUIRE))
		return 1;
	pthread_mutex_lock(&lock);
	for (struct condition *it; (it = *first) && is_met(it);) {
		*first = it->next;
		free(it);
	}
	met = !*first;
	pthread_mutex_unlock(&lock);
	return met;
}

void wait_for_values(struct condition **first)
{
	const struct timespec millisecond = {0, 1000000};

	while (!are_met(first))
		nanosleep(&millisecond, NULL);
}

static CUresult refused(CUstream stream, CUdeviceptr address, size_t bytes)
{
	struct range range;

	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (address % bytes || !find_range(address, &range) || range.kind == KIND_MANAGED || !is_accessible(address, bytes))
		return INVALID_VALUE;
	return SUCCESS;
}

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t bytes, unsigned flags)
{
	CUresult code = HOLLOW ? SUCCESS : refused(stream, address, bytes) ?: flags > 1 ? INVALID_VALUE : SUCCESS;

	if (HOLLOW || code || captured(stream, NODE_VALUES))
		return code;
	if (bytes == 8)
		__atomic_store_n((uint64_t *)address, value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)address, (uint32_t)value, __ATOMIC_RELEASE);
	return SUCCESS;
}

static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t bytes, unsigned flags)
{
	CUresult code = HOLLOW ? SUCCESS : refused(stream, address, bytes) ?: flags >= OPERATIONS ? INVALID_VALUE : SUCCESS;
	struct condition *it, **at;

	if (HOLLOW || code || captured(stream, NODE_VALUES))
		return code;
	at = conditions_of(stream);
	it = malloc(sizeof(*it));
	*it = (struct condition){address, value, (int)bytes, (int)flags, NULL};
	are_met(at);
	while (*at)
		at = &(*at)->next;
	__atomic_store_n(at, it, __ATOMIC_RELEASE);
	return SUCCESS;
}

#define VALUES(bits, type)                                                                                   \
	BOTH(cuStreamWriteValue##bits, _ptsz, (CUstream stream, CUdeviceptr address, type value, unsigned flags),        \
	     write_value(stream, address, value, bits / 8, flags))                                           \
	BOTH(cuStreamWriteValue##bits##_v2, _ptsz, (CUstream stream, CUdeviceptr address, type value, unsigned flags),   \
	     write_value(stream, address, value, bits / 8, flags))                                           \
	BOTH(cuStreamWaitValue##bits, _ptsz, (CUstream stream, CUdeviceptr address, type value, unsigned flags),         \
	     wait_value(stream, address, value, bits / 8, flags))                                            \
	BOTH(cuStreamWaitValue##bits##_v2, _ptsz, (CUstream stream, CUdeviceptr address, type value, unsigned flags),    \
	     wait_value(stream, address, value, bits / 8, flags))
VALUES(32, uint32_t)
VALUES(64, uint64_t)
