/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that graphs allocate. It has addresses from the node on, a GPU's memory from the first launch on and as long as
 * there are a graph, an executable or a use of it, and is in use from a launch to a free. */
#include <pthread.h>
#include <stdlib.h>
#include "soft.h"

struct graph_memory {
	uint64_t address, bytes;
	int device, holders, taken, used;
	struct graph_memory *next;
};
static struct graph_memory *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t graph_address(const struct graph_memory *it)
{
	return it->address;
}

struct graph_memory *make_graph_memory(int device, uint64_t bytes)
{
	struct graph_memory *it = malloc(sizeof(*it));
	uint64_t address = map_graph(device, bytes);

	*it = (struct graph_memory){address, bytes, device, 1, 0, 0, NULL};
	pthread_mutex_lock(&lock);
	it->next = all;
	if (address)
		all = it;
	pthread_mutex_unlock(&lock);
	if (!address)
		free(it);
	return address ? it : NULL;
}

static struct graph_memory *find(uint64_t address)
{
	struct graph_memory *it = all;

	while (it && it->address != address)
		it = it->next;
	return it;
}

struct graph_memory *graph_memory_at(uint64_t address)
{
	struct graph_memory *it;

	pthread_mutex_lock(&lock);
	it = find(address);
	pthread_mutex_unlock(&lock);
	return it;
}

static void let_go(struct graph_memory *it)
{
	if (--it->holders)
		return;
	for (struct graph_memory **at = &all; *at; at = &(*at)->next)
		if (*at == it) {
			*at = it->next;
			break;
		}
	if (it->taken && it->device >= 0)
		give_back(it->device, it->bytes);
	unmap_graph(it->address);
	free(it);
}

void hold_graph_memory(struct graph_memory *it)
{
	pthread_mutex_lock(&lock);
	it->holders++;
	pthread_mutex_unlock(&lock);
}

void let_go_graph_memory(struct graph_memory *it)
{
	pthread_mutex_lock(&lock);
	let_go(it);
	pthread_mutex_unlock(&lock);
}

int is_graph_memory_in_use(const struct graph_memory *it)
{
	return __atomic_load_n(&it->used, __ATOMIC_RELAXED);
}

int take_graph_memory(struct graph_memory *it)
{
	int room;

	pthread_mutex_lock(&lock);
	room = it->taken || it->device < 0 || reserve(it->device, it->bytes);
	it->taken |= room;
	pthread_mutex_unlock(&lock);
	return room;
}

void use_graph_memory(struct graph_memory *it)
{
	pthread_mutex_lock(&lock);
	it->holders += !it->used;
	it->used = 1;
	pthread_mutex_unlock(&lock);
}

static int release(struct graph_memory *it)
{
	int used = it && it->used;

	if (used) {
		it->used = 0;
		let_go(it);
	}
	return used;
}

int free_graph_memory(struct graph_memory *it)
{
	int used;

	pthread_mutex_lock(&lock);
	used = release(it);
	pthread_mutex_unlock(&lock);
	return used;
}

int free_graph_memory_at(uint64_t address)
{
	int used;

	pthread_mutex_lock(&lock);
	used = release(find(address));
	pthread_mutex_unlock(&lock);
	return used;
}
