/* SPDX-License-Identifier: Apache-2.0 */
/* One pool for each device, which keeps nothing: what is freed goes back at once. */
#include "soft.h"

struct pool {
	int device;
};
static struct pool pools[MAX_DEVICES];

int device_of_pool(CUmemoryPool pool)
{
	return pool->device;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	pools[device].device = device;
	*pool = &pools[device];
	return COUNTED(SUCCESS);
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	COUNT;
	if (attribute >= POOL_RESERVED)
		*(uint64_t *)value = bytes_in_use(pool->device);
	else
		*(uint64_t *)value = 0;
	return COUNTED(SUCCESS);
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	COUNT;
	(void)pool, (void)attribute, (void)value;
	return COUNTED(SUCCESS);
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUaccess *access, size_t count_)
{
	COUNT;
	(void)pool, (void)access, (void)count_;
	return COUNTED(SUCCESS);
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	COUNT;
	(void)pool, (void)keep;
	return COUNTED(SUCCESS);
}
