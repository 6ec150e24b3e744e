/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#include "soft.h"

/* What takes none of a GPU's memory. */
static int is_elsewhere(const struct range *range)
{
	return range->kind == KIND_PINNED || range->kind == KIND_IMPORTED || (range->kind == KIND_MANAGED && !HOLLOW);
}

static int hold(const struct range *range, size_t bytes)
{
	if (range->pool)
		return take_from_pool(range->pool, bytes);
	return is_elsewhere(range) || reserve(range->device, bytes);
}

static void let_go(const struct range *range, size_t bytes)
{
	if (range->pool && range->kind == KIND_POOL)
		give_to_pool(range->pool, bytes);
	else if (!is_elsewhere(range))
		give_back(range->device, bytes);
}

/* Whether there is memory at the addresses of a kind. */
static int is_memory(enum kind kind)
{
	return !HOLLOW || kind == KIND_PINNED || kind == KIND_MANAGED || kind == KIND_IMPORTED;
}

static uint64_t map(enum kind kind, size_t bytes)
{
	void *memory;

	if (!is_memory(kind))
		return take_addresses(bytes);
	memory = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return memory == MAP_FAILED ? 0 : (uint64_t)memory;
}

static void unmap(const struct range *range)
{
	uint64_t bytes = range->end - range->begin;

	if (is_memory(range->kind))
		munmap((void *)range->begin, pages(bytes));
	else
		give_addresses(range->begin, bytes);
}

static void drop(const struct range *range)
{
	if (range->kind == KIND_MANAGED)
		drop_managed(range->begin);
	unmap(range);
	if (range->fd >= 0)
		close(range->fd);
	let_go(range, range->end - range->begin);
}

/* Another thread may have destroyed the context meanwhile, and what was in it then. */
static CUresult unless_ended(uint64_t address, CUcontext context)
{
	struct range range;

	if (is_alive(context))
		return SUCCESS;
	if (take_range(address, &range))
		drop(&range);
	return CONTEXT_DESTROYED;
}

static CUresult allocate_as(struct range range, uint64_t *address, size_t bytes)
{
	if (!bytes)
		return INVALID_VALUE;
	if (!hold(&range, bytes))
		return OUT_OF_MEMORY;
	range.begin = map(range.kind, bytes);
	if (!range.begin) {
		let_go(&range, bytes);
		return OUT_OF_MEMORY;
	}
	range.fd = -1;
	range.context = current();
	*address = range.begin;
	range.end = range.begin + bytes;
	if (range.kind == KIND_MANAGED)
		add_managed(range.begin, range.end);
	add_range(range);
	return unless_ended(range.begin, range.context);
}

static CUresult allocate(uint64_t *address, size_t bytes, enum kind kind, unsigned flags)
{
	return allocate_as((struct range){.kind = kind, .device = current()->device, .flags = flags}, address, bytes);
}

static CUresult allocate_from(CUmemoryPool pool, uint64_t *address, size_t bytes)
{
	int device = device_of_pool(pool), host = device == IN_HOST_MEMORY;

	return allocate_as((struct range){.kind = KIND_POOL, .pool = pool, .host = host,
					  .device = host ? current()->device : device}, address, bytes);
}

/* Of what a function allocates another one frees nothing. */
enum { OF_DEVICE = 1 << KIND_DEVICE | 1 << KIND_POOL | 1 << KIND_MANAGED, OF_HOST = 1 << KIND_PINNED };

static CUresult release(uint64_t address, int kinds)
{
	struct range range;

	if (!address)
		return SUCCESS;
	if (!find_range(address, &range) || range.registered)
		return INVALID_VALUE;
	if (range.kind == KIND_GRAPH)
		return kinds & 1 << KIND_DEVICE && (HOLLOW || free_graph_memory_at(address)) ? SUCCESS : INVALID_VALUE;
	if (!(kinds & 1 << range.kind) && !(range.kind == KIND_IMPORTED && range.pool && kinds & 1 << KIND_POOL))
		return INVALID_VALUE;
	if (!take_range(address, &range))
		return INVALID_VALUE;
	drop(&range);
	return SUCCESS;
}

void release_context(CUcontext context)
{
	struct range range;

	while (range_of_context(context, &range) && take_range(range.begin, &range))
		if (!range.registered)
			drop(&range);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	return COUNTED(allocate(address, bytes, KIND_DEVICE, 0));
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	(void)element;
	*pitch = (width + 511) & ~511ull;
	return COUNTED(allocate(address, *pitch * height, KIND_DEVICE, 0));
}

API CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	return COUNTED(allocate((uint64_t *)address, bytes, KIND_PINNED, 0));
}

API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	return COUNTED(allocate(address, bytes, KIND_MANAGED, flags));
}

/* With any context current, or none: the address has the memory's own. */
API CUresult cuMemFree_v2(CUdeviceptr address)
{
	COUNT;
	return COUNTED(release(address, OF_DEVICE));
}

/* The addresses of a graph's memory are its own from the capture on, as it may be launched any number of times. */
uint64_t map_graph(int device, uint64_t bytes)
{
	struct range range = {.kind = KIND_GRAPH, .fd = -1, .device = device, .begin = map(KIND_GRAPH, bytes)};

	range.host = device == IN_HOST_MEMORY;
	range.end = range.begin + bytes;
	if (range.begin)
		add_range(range);
	return range.begin;
}

void unmap_graph(uint64_t address)
{
	struct range range;

	if (take_range(address, &range))
		unmap(&range);
}

static CUresult allocate_of(CUmemoryPool pool, CUdeviceptr *address, size_t bytes, CUstream stream)
{
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (!HOLLOW && pool && (!is_pool(pool) || is_imported(pool)))
		return INVALID_VALUE;
	if (!pool && HOLLOW)
		pool = pool_of_device(current()->device);
	if (pool && bytes && capture_of(stream))
		return add_captured_allocation(stream, device_of_pool(pool), bytes, address);
	return pool ? allocate_from(pool, address, bytes) : INVALID_VALUE;
}

BOTH(cuMemAllocAsync, _ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream),
     allocate_of(current() ? pool_of_device(device_of_stream(stream)) : NULL, address, bytes, stream))
BOTH(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream),
     allocate_of(pool, address, bytes, stream))
BOTH(cuMemFreeAsync, _ptsz, (CUdeviceptr address, CUstream stream),
     unusable_stream(stream) ?: capture_of(stream) ? add_captured_free(stream, address) : release(address, OF_DEVICE))

API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	return COUNTED(allocate((uint64_t *)address, bytes, KIND_PINNED, flags));
}

API CUresult cuMemFreeHost(void *address)
{
	COUNT;
	return COUNTED(release((uint64_t)address, OF_HOST));
}

API CUresult cuMemGetInfo_v2(size_t *unused, size_t *total)
{
	COUNT;
	NEED_CONTEXT;
	*total = capacity();
	*unused = unused_bytes(physical(current()->device));
	return COUNTED(SUCCESS);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	COUNT;
	NEED_CONTEXT;
	struct range range;

	if (!find_range(address, &range))
		return COUNTED(NOT_FOUND);
	if (base)
		*base = range.begin;
	if (bytes)
		*bytes = range.end - range.begin;
	return COUNTED(SUCCESS);
}
