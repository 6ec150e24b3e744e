/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that are reserved for mappings of memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "soft.h"

struct reservation {
	uint64_t begin, end;
	struct reservation *next;
};
static struct reservation *reservations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note_reservation(uint64_t begin, uint64_t end)
{
	struct reservation *it = malloc(sizeof(*it));

	pthread_mutex_lock(&lock);
	*it = (struct reservation){begin, end, reservations};
	reservations = it;
	pthread_mutex_unlock(&lock);
}

int is_reserved(uint64_t begin, uint64_t end)
{
	struct reservation *it;

	pthread_mutex_lock(&lock);
	for (it = reservations; it && !(it->begin <= begin && begin < end && end <= it->end);)
		it = it->next;
	pthread_mutex_unlock(&lock);
	return it != NULL;
}

static int drop_reservation(uint64_t begin, uint64_t end)
{
	struct reservation **at = &reservations, *it;

	pthread_mutex_lock(&lock);
	while ((it = *at) && (it->begin != begin || it->end != end))
		at = &it->next;
	if (it)
		*at = it->next;
	pthread_mutex_unlock(&lock);
	free(it);
	return it != NULL;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
				 unsigned long long flags)
{
	COUNT;
	char *got, *begin;

	(void)wish, (void)flags;
	if (!bytes || bytes % GRANULE)
		return COUNTED(INVALID_VALUE);
	alignment = alignment < GRANULE ? GRANULE : alignment;
	got = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (got == MAP_FAILED)
		return COUNTED(OUT_OF_MEMORY);
	begin = (char *)(((uintptr_t)got + alignment - 1) & ~(alignment - 1));
	if (begin > got)
		munmap(got, begin - got);
	munmap(begin + bytes, got + alignment - begin);
	*address = (CUdeviceptr)begin;
	note_reservation(*address, *address + bytes);
	return COUNTED(SUCCESS);
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	COUNT;
	if (overlaps(address, address + bytes) || !drop_reservation(address, address + bytes))
		return COUNTED(INVALID_VALUE);
	munmap((void *)address, bytes);
	return COUNTED(SUCCESS);
}
