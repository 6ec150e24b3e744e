/* SPDX-License-Identifier: Apache-2.0 */
/* Where the pages of managed memory are: in host memory until they are prefetched to a GPU, as kernels do nothing, and from
 * there back when another allocation needs the room. */
#include <pthread.h>
#include <stdlib.h>
#include "soft.h"

enum { PAGE = 4096 };
struct managed {
	uint64_t begin, end;
	unsigned char *places; /* of each page: 0 the host, or a device's number and 1 */
	struct managed *next;
};
static struct managed *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t page_count(const struct managed *it)
{
	return (it->end - it->begin + PAGE - 1) / PAGE;
}

void add_managed(uint64_t begin, uint64_t end)
{
	struct managed *it = malloc(sizeof(*it));

	*it = (struct managed){begin, end, NULL, NULL};
	it->places = calloc(page_count(it), 1);
	pthread_mutex_lock(&lock);
	it->next = all;
	all = it;
	pthread_mutex_unlock(&lock);
}

/* The pages between two that are on a device are in host memory from now on; how many bytes were moved. Stops when it has
 * moved enough. */
static uint64_t evict_from(struct managed *it, size_t from, size_t to, int device, uint64_t enough)
{
	uint64_t moved = 0;

	for (size_t page = from; page < to && moved < enough; page++)
		if (it->places[page] == device + 1) {
			it->places[page] = 0;
			moved += PAGE;
		}
	if (moved)
		give_back(device, moved);
	return moved;
}

void drop_managed(uint64_t begin)
{
	struct managed **at = &all, *it;

	pthread_mutex_lock(&lock);
	while ((it = *at) && it->begin != begin)
		at = &it->next;
	if (it) {
		*at = it->next;
		for (int device = 0; device < device_count(); device++)
			evict_from(it, 0, page_count(it), device, UINT64_MAX);
		free(it->places);
		free(it);
	}
	pthread_mutex_unlock(&lock);
}

/* Room on a device for another allocation of the process; 0 if nothing could be moved. */
static int evict(int device, uint64_t bytes)
{
	uint64_t moved = 0;

	for (struct managed *it = all; it && moved < bytes; it = it->next)
		moved += evict_from(it, 0, page_count(it), device, bytes - moved);
	return moved > 0;
}

int evict_managed(int device, uint64_t bytes)
{
	int moved;

	pthread_mutex_lock(&lock);
	moved = evict(device, bytes);
	pthread_mutex_unlock(&lock);
	return moved;
}

static uint64_t bytes_in_host(const struct managed *it, size_t from, size_t to)
{
	uint64_t bytes = 0;

	for (size_t page = from; page < to; page++)
		bytes += it->places[page] ? 0 : PAGE;
	return bytes;
}

/* To host memory and back, page by page. What has no room on the GPU stays in host memory. */
static void move(struct managed *it, size_t from, size_t to, int place)
{
	for (int device = 0; device < device_count(); device++)
		if (device != place)
			evict_from(it, from, to, device, UINT64_MAX);
	if (place < 0)
		return;
	if (!reserve_unused(place, bytes_in_host(it, from, to))) {
		evict(place, bytes_in_host(it, from, to)); /* its own pages too */
		if (!reserve_unused(place, bytes_in_host(it, from, to)))
			return;
	}
	for (size_t page = from; page < to; page++)
		it->places[page] = place + 1;
}

static struct managed *managed_at(uint64_t begin, uint64_t end)
{
	struct managed *it = all;

	while (it && !(it->begin <= begin && begin < end && end <= it->end))
		it = it->next;
	return it;
}

static CUresult prefetch(uint64_t begin, size_t bytes, int place, CUstream stream)
{
	struct managed *it;

	if (HOLLOW)
		return SUCCESS;
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (capture_of(stream))
		return CAPTURE_UNSUPPORTED;
	if (place == NOWHERE)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	it = managed_at(begin, begin + bytes);
	if (it)
		move(it, (begin - it->begin) / PAGE, (begin + bytes - it->begin + PAGE - 1) / PAGE, place);
	pthread_mutex_unlock(&lock);
	return it ? SUCCESS : INVALID_VALUE;
}

enum { FIRST_ADVICE = 1, LAST_ADVICE = 6, UNSET_READ_MOSTLY = 2 };

/* Changes nothing here. Of what is mostly read no place is looked at. */
static CUresult advise(uint64_t begin, size_t bytes, int advice, int place)
{
	int known;

	if (HOLLOW)
		return SUCCESS;
	if (advice < FIRST_ADVICE || advice > LAST_ADVICE)
		return INVALID_VALUE;
	if (advice > UNSET_READ_MOSTLY && place == NOWHERE)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	known = managed_at(begin, begin + bytes) != NULL;
	pthread_mutex_unlock(&lock);
	return known ? SUCCESS : INVALID_VALUE;
}

/* -1 is CU_DEVICE_CPU. */
static int place_of(CUdevice device)
{
	CUlocation at = {device == -1 ? LOCATION_HOST : LOCATION_DEVICE, device};

	return place(&at);
}

BOTH(cuMemPrefetchAsync, _ptsz, (CUdeviceptr begin, size_t bytes, CUdevice device, CUstream stream),
     prefetch(begin, bytes, place_of(device), stream))
BOTH(cuMemPrefetchAsync_v2, _ptsz, (CUdeviceptr begin, size_t bytes, CUlocation at, unsigned flags, CUstream stream),
     flags ? INVALID_VALUE : prefetch(begin, bytes, place(&at), stream))

API CUresult cuMemAdvise(CUdeviceptr begin, size_t bytes, int advice, CUdevice device)
{
	COUNT;
	return COUNTED(advise(begin, bytes, advice, place_of(device)));
}

API CUresult cuMemAdvise_v2(CUdeviceptr begin, size_t bytes, int advice, CUlocation at)
{
	COUNT;
	return COUNTED(advise(begin, bytes, advice, place(&at)));
}
