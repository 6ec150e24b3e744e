/* SPDX-License-Identifier: Apache-2.0 */
/* Pools keep nothing: what is freed goes back at once. Each device has a default one, and one that is allocated from. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "soft.h"

struct pool {
	int device; /* or IN_HOST_MEMORY */
	int destroyed, exportable, imported;
	struct pool_name name;
	uint64_t used, high, most, threshold;
};
static struct pool defaults[MAX_DEVICES], *chosen[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int next_number = 1;

static CUmemoryPool default_of(CUdevice device)
{
	defaults[device].device = device;
	return &defaults[device];
}

static int is_default(CUmemoryPool pool)
{
	return pool >= defaults && pool < defaults + MAX_DEVICES;
}

CUmemoryPool pool_of_device(CUdevice device)
{
	CUmemoryPool pool = __atomic_load_n(&chosen[device], __ATOMIC_ACQUIRE);

	return pool ? pool : default_of(device);
}

int is_pool(CUmemoryPool pool)
{
	return is_default(pool) || is_handle(HANDLE_POOL, pool);
}

int device_of_pool(CUmemoryPool pool)
{
	return pool->device;
}

int take_from_pool(CUmemoryPool pool, uint64_t bytes)
{
	int room;

	pthread_mutex_lock(&lock);
	room = (!pool->most || (bytes <= pool->most && pool->used <= pool->most - bytes)) &&
	       (pool->device == IN_HOST_MEMORY || reserve(pool->device, bytes));
	if (room)
		pool->used += bytes;
	if (pool->used > pool->high)
		pool->high = pool->used;
	pthread_mutex_unlock(&lock);
	return room;
}

void give_to_pool(CUmemoryPool pool, uint64_t bytes)
{
	int over;

	pthread_mutex_lock(&lock);
	pool->used -= bytes;
	over = pool->destroyed && !pool->used;
	pthread_mutex_unlock(&lock);
	if (pool->device != IN_HOST_MEMORY)
		give_back(pool->device, bytes);
	if (over)
		free(pool);
}

struct pool_name name_of_pool(CUmemoryPool pool)
{
	return pool->name;
}

int is_exportable(CUmemoryPool pool)
{
	return pool->exportable;
}

int is_imported(CUmemoryPool pool)
{
	return pool->imported;
}

CUmemoryPool imported_pool(int device, struct pool_name name)
{
	CUmemoryPool pool = hold_handle(HANDLE_POOL, calloc(1, sizeof(*pool)));

	*pool = (struct pool){.device = device, .imported = 1, .name = name};
	return pool;
}

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProperties *wanted)
{
	COUNT;
	int device = place(&wanted->location);

	if (device == NOWHERE)
		return COUNTED(INVALID_VALUE);
	*pool = hold_handle(HANDLE_POOL, calloc(1, sizeof(**pool)));
	**pool = (struct pool){.device = device,
			       .most = HOLLOW ? 0 : wanted->most,
			       .exportable = wanted->handle_types & HANDLE_POSIX_FD,
			       .name = {getpid(), __atomic_fetch_add(&next_number, 1, __ATOMIC_RELAXED)}};
	return COUNTED(SUCCESS);
}

/* Memory of it that is in use stays, and goes when it is freed. */
static CUresult destroy(CUmemoryPool pool)
{
	int over;

	if (!let_go_handle(HANDLE_POOL, pool))
		return INVALID_VALUE;
	if (pool->device != IN_HOST_MEMORY && chosen[pool->device] == pool)
		__atomic_store_n(&chosen[pool->device], NULL, __ATOMIC_RELEASE);
	pthread_mutex_lock(&lock);
	pool->destroyed = 1;
	over = !pool->used;
	pthread_mutex_unlock(&lock);
	if (over)
		free(pool);
	return SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	COUNT;
	return COUNTED(destroy(pool));
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	*pool = default_of(device);
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	*pool = pool_of_device(device);
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	if (!is_pool(pool) || pool->device != device || (!HOLLOW && pool->imported))
		return COUNTED(INVALID_VALUE);
	__atomic_store_n(&chosen[device], pool, __ATOMIC_RELEASE);
	return COUNTED(SUCCESS);
}

/* The one that a place is allocated from: the host has none, unless it is hollow. */
static CUresult pool_at(CUmemoryPool *pool, const CUlocation *at)
{
	int device = place(at);

	if (device < 0 && !(HOLLOW && device == IN_HOST_MEMORY))
		return INVALID_VALUE;
	*pool = pool_of_device(device < 0 ? 0 : device);
	return SUCCESS;
}

API CUresult cuMemGetMemPool(CUmemoryPool *pool, const CUlocation *at, int type)
{
	COUNT;
	(void)type;
	return COUNTED(pool_at(pool, at));
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	COUNT;
	if (!is_pool(pool))
		return COUNTED(INVALID_VALUE);
	switch (attribute) {
	case POOL_THRESHOLD: *(uint64_t *)value = pool->threshold; break;
	case POOL_RESERVED:
	case POOL_USED: *(uint64_t *)value = pool->used; break;
	case POOL_RESERVED_HIGH:
	case POOL_USED_HIGH: *(uint64_t *)value = pool->high; break;
	default: *(int *)value = 1; /* reuse is allowed */
	}
	return COUNTED(SUCCESS);
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	COUNT;
	if (!is_pool(pool))
		return COUNTED(INVALID_VALUE);
	if (attribute == POOL_THRESHOLD)
		pool->threshold = *(uint64_t *)value;
	else if (attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH)
		pool->high = pool->used;
	return COUNTED(SUCCESS);
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUaccess *access, size_t count_)
{
	COUNT;
	(void)access, (void)count_;
	return COUNTED(is_pool(pool) ? SUCCESS : INVALID_VALUE);
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	COUNT;
	(void)keep;
	return COUNTED(is_pool(pool) ? SUCCESS : INVALID_VALUE);
}
