/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of another process: it becomes a memfd when a handle to it is first wanted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "soft.h"

struct ipc {
	int pid, fd;
	uint64_t bytes;
};

/* Moves a range's memory into a file, at the same address; -1 if it cannot. */
static int make_file(const struct range *range)
{
	size_t bytes = pages(range->end - range->begin);
	int fd = memfd_create("softgpu-ipc", MFD_CLOEXEC);
	char *copy;

	if (fd < 0 || ftruncate(fd, bytes))
		return -1;
	copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memcpy(copy, (void *)range->begin, bytes);
	munmap(copy, bytes);
	mmap((void *)range->begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	change_range(range->begin, fd);
	return fd;
}

int shared_file(const struct range *range)
{
	return range->fd >= 0 ? range->fd : make_file(range);
}

API CUresult cuIpcGetMemHandle(CUipcHandle *handle, CUdeviceptr address)
{
	COUNT;
	struct range range;
	struct ipc ipc = {.pid = getpid()};

	if (!find_range(address, &range) || range.kind != KIND_DEVICE)
		return COUNTED(INVALID_VALUE);
	ipc.fd = shared_file(&range);
	ipc.bytes = range.end - range.begin;
	if (ipc.fd < 0)
		return COUNTED(OUT_OF_MEMORY);
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return COUNTED(SUCCESS);
}

CUresult open_memory(CUdeviceptr *address, int pid, int fd, uint64_t bytes, CUmemoryPool pool)
{
	struct range range = {.kind = KIND_IMPORTED, .pool = pool};
	char path[64];
	void *got;

	range.device = pool ? device_of_pool(pool) : current()->device;
	range.context = pool ? NULL : current();
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	range.fd = open(path, O_RDWR | O_CLOEXEC);
	if (range.fd < 0)
		return INVALID_HANDLE;
	got = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, range.fd, 0);
	if (got == MAP_FAILED) {
		close(range.fd);
		return OUT_OF_MEMORY;
	}
	*address = range.begin = (uint64_t)got;
	range.end = range.begin + bytes;
	add_range(range);
	return SUCCESS;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcHandle handle, unsigned flags)
{
	COUNT;
	NEED_CONTEXT;
	struct ipc ipc;

	(void)flags;
	memcpy(&ipc, &handle, sizeof(ipc));
	return COUNTED(open_memory(address, ipc.pid, ipc.fd, ipc.bytes, NULL));
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	COUNT;
	NEED_CONTEXT;
	struct range range;

	if (!find_range(address, &range) || range.kind != KIND_IMPORTED || range.pool ||
	    !take_range(address, &range))
		return COUNTED(INVALID_VALUE);
	munmap((void *)range.begin, pages(range.end - range.begin));
	close(range.fd);
	return COUNTED(SUCCESS);
}

API CUresult cuIpcGetEventHandle(CUipcHandle *handle, CUevent event)
{
	COUNT;
	(void)event;
	memset(handle, 0, sizeof(*handle));
	return COUNTED(SUCCESS);
}

API CUresult cuIpcOpenEventHandle(CUevent *event, CUipcHandle handle)
{
	COUNT;
	(void)handle;
	return COUNTED(cuEventCreate(event, 0));
}
