/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of another process: a file that names the pool, and for each allocation one with its memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "soft.h"

struct exported_pool {
	struct pool_name name;
	int device;
};
struct exported_memory {
	struct pool_name of;
	int fd;
	uint64_t bytes;
};

static CUresult export_pool(int *to, CUmemoryPool pool, int type, unsigned long long flags)
{
	struct exported_pool it;

	if (HOLLOW)
		return NOT_SUPPORTED;
	if (!is_pool(pool) || flags || type != HANDLE_POSIX_FD || !is_exportable(pool))
		return INVALID_VALUE;
	it = (struct exported_pool){name_of_pool(pool), device_of_pool(pool)};
	*to = memfd_create("softgpu-pool", MFD_CLOEXEC);
	if (*to < 0 || write(*to, &it, sizeof(it)) != sizeof(it))
		return OUT_OF_MEMORY;
	return SUCCESS;
}

API CUresult cuMemPoolExportToShareableHandle(void *to, CUmemoryPool pool, int type, unsigned long long flags)
{
	COUNT;
	return COUNTED(export_pool(to, pool, type, flags));
}

/* The handle is a file descriptor by value. */
static CUresult import_pool(CUmemoryPool *pool, void *handle, int type, unsigned long long flags)
{
	struct exported_pool it;

	if (HOLLOW) {
		*pool = imported_pool(0, (struct pool_name){0});
		return SUCCESS;
	}
	if (flags || type != HANDLE_POSIX_FD || pread((int)(intptr_t)handle, &it, sizeof(it), 0) != sizeof(it))
		return INVALID_VALUE;
	*pool = imported_pool(it.device, it.name);
	return SUCCESS;
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags)
{
	COUNT;
	return COUNTED(import_pool(pool, handle, type, flags));
}

static CUresult export_pointer(CUipcHandle *to, CUdeviceptr address)
{
	struct exported_memory it;
	struct range range;

	if (!find_range(address, &range) || range.begin != address || range.kind != KIND_POOL || !is_exportable(range.pool))
		return INVALID_VALUE;
	it = (struct exported_memory){name_of_pool(range.pool), shared_file(&range), range.end - range.begin};
	if (it.fd < 0)
		return OUT_OF_MEMORY;
	memset(to, 0, sizeof(*to));
	memcpy(to, &it, sizeof(it));
	return SUCCESS;
}

API CUresult cuMemPoolExportPointer(CUipcHandle *to, CUdeviceptr address)
{
	COUNT;
	return COUNTED(export_pointer(to, address));
}

static CUresult import_pointer(CUdeviceptr *address, CUmemoryPool pool, const CUipcHandle *from)
{
	struct exported_memory it;
	struct pool_name name;

	memcpy(&it, from, sizeof(it));
	if (!is_pool(pool) || !is_imported(pool))
		return INVALID_VALUE;
	name = name_of_pool(pool);
	if (memcmp(&it.of, &name, sizeof(name)))
		return INVALID_VALUE;
	return open_memory(address, it.of.pid, it.fd, it.bytes, pool);
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, const CUipcHandle *from)
{
	COUNT;
	return COUNTED(import_pointer(address, pool, from));
}
