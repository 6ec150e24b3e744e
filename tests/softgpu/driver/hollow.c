/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses without memory, for a hollow library. A freed one is given out again at once where the size fits, as drivers
 * do. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "soft.h"

#define ALL (1ull << 42)
#define UNIT 512

struct gap {
	uint64_t address, bytes;
	struct gap *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gap *gaps[4096]; /* by size */
static uint64_t next_address, end;

static uint64_t whole(uint64_t bytes)
{
	return (bytes + UNIT - 1) / UNIT * UNIT;
}

static struct gap **gaps_of(uint64_t bytes)
{
	return &gaps[bytes / UNIT % (sizeof(gaps) / sizeof(*gaps))];
}

uint64_t take_addresses(uint64_t bytes)
{
	uint64_t address = 0;

	bytes = whole(bytes);
	pthread_mutex_lock(&lock);
	for (struct gap **at = gaps_of(bytes), *it; (it = *at); at = &it->next)
		if (it->bytes == bytes) {
			address = it->address;
			*at = it->next;
			free(it);
			break;
		}
	if (!next_address) {
		next_address = (uint64_t)mmap(NULL, ALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		end = next_address + ALL;
	}
	if (!address && bytes <= end - next_address) {
		address = next_address;
		next_address += bytes;
	}
	pthread_mutex_unlock(&lock);
	return address;
}

void give_addresses(uint64_t address, uint64_t bytes)
{
	struct gap *it = malloc(sizeof(*it));

	bytes = whole(bytes);
	pthread_mutex_lock(&lock);
	*it = (struct gap){address, bytes, *gaps_of(bytes)};
	*gaps_of(bytes) = it;
	pthread_mutex_unlock(&lock);
}
