/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: a memfd for each handle, so that it can be mapped twice and sent to another process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "soft.h"

struct physical {
	int fd, device, imported;
	int holders; /* handles, each as often as it is to be released, and mappings */
	size_t bytes;
	CUlocation location;
};

static int is_host(const struct physical *it)
{
	return it->device == IN_HOST_MEMORY;
}

static void note(const struct physical *it, int handles)
{
	add_bytes(kind_name(is_host(it) ? KIND_PINNED : KIND_VMM), handles, handles * (int64_t)it->bytes);
}

static void let_go(struct physical *it)
{
	if (__atomic_sub_fetch(&it->holders, 1, __ATOMIC_ACQ_REL))
		return;
	if (it->fd >= 0)
		close(it->fd);
	if (!it->imported && !HOLLOW) {
		if (!is_host(it))
			give_back(it->device, it->bytes);
		note(it, -1);
	}
	free(it);
}

/* A handle of nothing. */
static CUresult create_hollow(CUmemHandle *handle, size_t bytes)
{
	struct physical *it;

	if (!bytes)
		return INVALID_VALUE;
	it = calloc(1, sizeof(*it));
	*it = (struct physical){.fd = -1, .holders = 1, .bytes = bytes};
	*handle = hold_handle(HANDLE_MEMORY, it);
	return SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granule, const CUallocation *wanted, int flags)
{
	COUNT;
	(void)wanted, (void)flags;
	*granule = GRANULE;
	return COUNTED(SUCCESS);
}

static CUresult create(CUmemHandle *handle, size_t bytes, const CUlocation *at)
{
	int device = place(at), host = device == IN_HOST_MEMORY;
	struct physical *it;

	if (device == NOWHERE)
		return INVALID_DEVICE;
	if (!bytes || bytes % GRANULE)
		return INVALID_VALUE;
	if (!host && !reserve(device, bytes))
		return OUT_OF_MEMORY;
	it = calloc(1, sizeof(*it));
	*it = (struct physical){memfd_create("softgpu", MFD_CLOEXEC), device, .holders = 1, .bytes = bytes, .location = *at};
	if (it->fd < 0 || ftruncate(it->fd, bytes)) {
		if (!host)
			give_back(device, bytes);
		if (it->fd >= 0)
			close(it->fd);
		free(it);
		return OUT_OF_MEMORY;
	}
	note(it, 1);
	*handle = hold_handle(HANDLE_MEMORY, it);
	return SUCCESS;
}

API CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUallocation *wanted, unsigned long long flags)
{
	COUNT;
	(void)flags;
	return COUNTED(HOLLOW ? create_hollow(handle, bytes) : create(handle, bytes, &wanted->location));
}

API CUresult cuMemRelease(CUmemHandle handle)
{
	COUNT;
	if (!let_go_handle(HANDLE_MEMORY, handle))
		return COUNTED(INVALID_VALUE);
	let_go(handle);
	return COUNTED(SUCCESS);
}

/* Where addresses are reserved and nothing is mapped yet; of a handle no more than it has, from its beginning on. */
static CUresult map(CUdeviceptr address, size_t bytes, size_t offset, CUmemHandle handle)
{
	uint64_t end = address + bytes;
	struct range range;

	if (!is_handle(HANDLE_MEMORY, handle) || (!HOLLOW && (offset || !bytes || bytes % GRANULE || bytes > handle->bytes)))
		return INVALID_VALUE;
	if (!HOLLOW && (!is_reserved(address, end) || overlaps(address, end)))
		return INVALID_VALUE;
	if (!HOLLOW && mmap((void *)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle->fd, 0) == MAP_FAILED)
		return INVALID_VALUE;
	range = (struct range){.begin = address, .end = end, .kind = KIND_VMM, .device = handle->device,
			       .fd = handle->fd, .physical = handle, .context = current(), .host = is_host(handle),
			       .no_access = !HOLLOW};
	__atomic_fetch_add(&handle->holders, 1, __ATOMIC_RELAXED);
	add_range(range);
	return SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags)
{
	COUNT;
	(void)flags;
	return COUNTED(map(address, bytes, offset, handle));
}

static int are_whole_mappings(uint64_t begin, uint64_t bytes)
{
	struct range range = {.end = begin};

	while (range.end - begin < bytes)
		if (!find_range(range.end, &range) || range.kind != KIND_VMM || range.begin < begin)
			return 0;
	return bytes && range.end - begin == bytes;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	COUNT;
	struct range range;

	if (!are_whole_mappings(address, bytes))
		return COUNTED(INVALID_VALUE);
	for (uint64_t done = 0; done < bytes && take_range(address + done, &range); done += range.end - range.begin)
		let_go(range.physical);
	if (!HOLLOW)
		mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	return COUNTED(SUCCESS);
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUaccess *access, size_t count_)
{
	COUNT;
	(void)access, (void)count_;
	if (!HOLLOW && (!give_access(address, bytes) || mprotect((void *)address, bytes, PROT_READ | PROT_WRITE)))
		return COUNTED(INVALID_VALUE);
	return COUNTED(SUCCESS);
}

API CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
	COUNT;
	struct range range;

	if (!find_range((uint64_t)address, &range) || range.kind != KIND_VMM)
		return COUNTED(INVALID_VALUE);
	__atomic_fetch_add(&range.physical->holders, 1, __ATOMIC_RELAXED);
	*handle = hold_handle(HANDLE_MEMORY, range.physical);
	return COUNTED(SUCCESS);
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUallocation *properties, CUmemHandle handle)
{
	COUNT;
	if (!is_handle(HANDLE_MEMORY, handle))
		return COUNTED(INVALID_VALUE);
	memset(properties, 0, sizeof(*properties));
	*properties = (CUallocation){.type = 1, .handle_types = HANDLE_POSIX_FD, .location = handle->location};
	return COUNTED(SUCCESS);
}

API CUresult cuMemExportToShareableHandle(void *to, CUmemHandle handle, int type, unsigned long long flags)
{
	COUNT;
	(void)flags;
	if (!is_handle(HANDLE_MEMORY, handle))
		return COUNTED(INVALID_VALUE);
	if (type != HANDLE_POSIX_FD)
		return COUNTED(NOT_SUPPORTED);
	*(int *)to = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
	return COUNTED(SUCCESS);
}

API CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *from, int type)
{
	COUNT;
	struct physical *it;
	int fd;

	if (HOLLOW)
		return COUNTED(create_hollow(handle, GRANULE));
	if (type != HANDLE_POSIX_FD)
		return COUNTED(NOT_SUPPORTED);
	fd = fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return COUNTED(INVALID_VALUE);
	it = calloc(1, sizeof(*it));
	*it = (struct physical){.fd = fd, .holders = 1, .imported = 1, .device = current() ? current()->device : 0};
	it->bytes = lseek(fd, 0, SEEK_END);
	it->location = (CUlocation){LOCATION_DEVICE, it->device};
	*handle = hold_handle(HANDLE_MEMORY, it);
	return COUNTED(SUCCESS);
}

API CUresult cuMulticastCreate(CUmemHandle *handle, const void *properties)
{
	COUNT;
	(void)properties;
	return COUNTED(HOLLOW ? create_hollow(handle, GRANULE) : NOT_SUPPORTED);
}
