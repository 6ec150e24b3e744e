/* SPDX-License-Identifier: Apache-2.0 */
/* A tree of address ranges. Ranges that overlap compare equal, so a lookup finds the one that holds an address. */
#define _GNU_SOURCE
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include "soft.h"

static void *tree;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_id = 1;

static int compare(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->end <= y->begin ? -1 : x->begin >= y->end;
}

static struct range *at(uint64_t address)
{
	struct range key = {.begin = address, .end = address + 1}, **found = tfind(&key, &tree, compare);

	return found ? *found : NULL;
}

const char *kind_name(enum kind kind)
{
	static const char *const names[] = {
		[KIND_DEVICE] = "memory device", [KIND_POOL] = "memory pool",          [KIND_VMM] = "memory vmm",
		[KIND_MANAGED] = "memory managed", [KIND_PINNED] = "memory pinned_host", [KIND_IMPORTED] = "memory imported",
	};

	return names[kind];
}

/* Handles count from their creation on, and variables and memory of graphs not at all. */
static int counts(enum kind kind)
{
	return kind != KIND_VMM && kind != KIND_MODULE && kind != KIND_GRAPH;
}

static const char *kind_of(const struct range *range)
{
	return kind_name(range->host ? KIND_PINNED : range->kind);
}

int is_device(const struct range *range)
{
	return range->kind != KIND_PINNED && !range->host;
}

size_t pages(size_t bytes)
{
	return (bytes + 4095) & ~4095ull;
}

int find_range(uint64_t address, struct range *to)
{
	struct range *found;

	pthread_mutex_lock(&lock);
	found = at(address);
	if (found)
		*to = *found;
	pthread_mutex_unlock(&lock);
	return found != NULL;
}

/* What reaches into one does, too. */
int overlaps(uint64_t begin, uint64_t end)
{
	struct range key = {.begin = begin, .end = end};
	int found;

	pthread_mutex_lock(&lock);
	found = tfind(&key, &tree, compare) != NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

int is_accessible(uint64_t begin, uint64_t bytes)
{
	uint64_t end = begin;
	struct range *found;

	pthread_mutex_lock(&lock);
	while (end - begin < bytes && (found = at(end)) && !found->no_access)
		end = found->end;
	pthread_mutex_unlock(&lock);
	return end - begin >= bytes;
}

/* Whole mappings, one beside the other. */
int give_access(uint64_t begin, uint64_t bytes)
{
	uint64_t to = begin;
	struct range *found;

	pthread_mutex_lock(&lock);
	for (; to - begin < bytes && (found = at(to)) && found->kind == KIND_VMM; to = found->end)
		found->no_access = 0;
	pthread_mutex_unlock(&lock);
	return to - begin >= bytes;
}

struct search {
	CUcontext context;
	const struct range *found;
};

/* Pools and physical memory belong to a device. */
static void look(const void *node, VISIT visit, void *closure)
{
	const struct range *range = *(const struct range *const *)node;
	struct search *search = closure;

	if (visit != preorder && visit != leaf)
		return;
	if (range->context == search->context && range->kind != KIND_POOL && range->kind != KIND_VMM)
		search->found = range;
}

/* One of the ranges that a context holds; 0 if it holds none. */
int range_of_context(CUcontext context, struct range *to)
{
	struct search search = {.context = context};

	pthread_mutex_lock(&lock);
	twalk_r(tree, look, &search);
	if (search.found)
		*to = *search.found;
	pthread_mutex_unlock(&lock);
	return search.found != NULL;
}

void add_range(struct range range)
{
	struct range *it = malloc(sizeof(*it));

	if (!it)
		abort();
	*it = range;
	pthread_mutex_lock(&lock);
	it->id = next_id++;
	tsearch(it, &tree, compare);
	pthread_mutex_unlock(&lock);
	if (counts(range.kind))
		add_bytes(kind_of(&range), 1, range.end - range.begin);
}

int take_range(uint64_t begin, struct range *to)
{
	struct range *found;

	pthread_mutex_lock(&lock);
	found = at(begin);
	if (found && found->begin == begin) {
		*to = *found;
		tdelete(found, &tree, compare);
	} else {
		found = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (!found)
		return 0;
	free(found);
	if (counts(to->kind))
		add_bytes(kind_of(to), -1, -(int64_t)(to->end - to->begin));
	return 1;
}

/* The memory behind a range has become a file. */
int change_range(uint64_t begin, int fd)
{
	struct range *found;

	pthread_mutex_lock(&lock);
	found = at(begin);
	if (found)
		found->fd = fd;
	pthread_mutex_unlock(&lock);
	return found != NULL;
}

/* A row of a GPU, by the number that it has for all processes. */
void note_gpu(const char *of, int device, int64_t calls, int64_t bytes)
{
	char name[24];

	if (!are_kept())
		return;
	snprintf(name, sizeof(name), "%s %d", of, physical(device));
	add_bytes(name, calls, bytes);
}

int reserve_unused(int device, uint64_t bytes)
{
	if (!take(physical(device), bytes))
		return 0;
	note_gpu("gpu", device, 1, bytes);
	return 1;
}

int reserve(int device, uint64_t bytes)
{
	return reserve_unused(device, bytes) || (evict_managed(device, bytes) && reserve_unused(device, bytes));
}

void give_back(int device, uint64_t bytes)
{
	give(physical(device), bytes);
	note_gpu("gpu", device, -1, -(int64_t)bytes);
}
