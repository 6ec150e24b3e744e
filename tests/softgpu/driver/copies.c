/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, made at once. Bytes are counted by direction and by what the host's side is. */
#include <stdio.h>
#include <string.h>
#include "soft.h"

enum direction { H2D, D2H, D2D, UNSAID };

static const char *host_kind(uint64_t address)
{
	struct range range;

	if (!find_range(address, &range))
		return "pageable";
	return range.kind == KIND_PINNED || range.host ? "pinned" : range.kind == KIND_MANAGED ? "managed" : "device";
}

static enum direction direction_of(uint64_t to, uint64_t from)
{
	struct range a, b;
	int on_device = find_range(to, &a) && is_device(&a), of_device = find_range(from, &b) && is_device(&b);

	return on_device ? (of_device ? D2D : H2D) : of_device ? D2H : UNSAID;
}

static void note(enum direction direction, uint64_t to, uint64_t from, uint64_t bytes)
{
	char name[56] = "copied d2d";

	if (direction == UNSAID)
		direction = direction_of(to, from);
	if (direction == H2D)
		snprintf(name, sizeof(name), "copied h2d %s", host_kind(from));
	else if (direction == D2H)
		snprintf(name, sizeof(name), "copied d2h %s", host_kind(to));
	else if (direction == UNSAID)
		snprintf(name, sizeof(name), "copied h2h");
	add_bytes(name, 1, bytes);
}

static CUresult copy(enum direction direction, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (!to || !from)
		return bytes ? INVALID_VALUE : SUCCESS;
	memmove((void *)to, (void *)from, bytes);
	note(direction, to, from, bytes);
	return SUCCESS;
}

/* One that waits for what the legacy stream has to do. */
static CUresult copy_now(enum direction direction, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (!current())
		return INVALID_CONTEXT;
	sleep_until(stream_end(NULL));
	return copy(direction, to, from, bytes);
}

static CUresult copy_later(enum direction direction, uint64_t to, uint64_t from, uint64_t bytes, CUstream stream)
{
	if (!current())
		return INVALID_CONTEXT;
	return captured(stream, NODE_COPY) ? SUCCESS : copy(direction, to, from, bytes);
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	COUNT;
	return COUNTED(copy_now(UNSAID, to, from, bytes));
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	COUNT;
	return COUNTED(copy_later(UNSAID, to, from, bytes, stream));
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	COUNT;
	return COUNTED(copy_now(H2D, to, (uint64_t)from, bytes));
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	COUNT;
	return COUNTED(copy_later(H2D, to, (uint64_t)from, bytes, stream));
}

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	COUNT;
	return COUNTED(copy_now(D2H, (uint64_t)to, from, bytes));
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	COUNT;
	return COUNTED(copy_later(D2H, (uint64_t)to, from, bytes, stream));
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	COUNT;
	return COUNTED(copy_later(D2D, to, from, bytes, NULL));
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	COUNT;
	return COUNTED(copy_later(D2D, to, from, bytes, stream));
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes, CUstream stream)
{
	COUNT;
	(void)at, (void)of;
	return COUNTED(copy_later(D2D, to, from, bytes, stream));
}

API CUresult cuMemcpy2DAsync_v2(const CUcopy2D *it, CUstream stream)
{
	COUNT;
	const CUside *a = &it->source, *b = &it->target;
	uint64_t from = a->type == MEMORY_HOST ? (uint64_t)a->host : a->device;
	uint64_t to = b->type == MEMORY_HOST ? (uint64_t)b->host : b->device;
	enum direction direction = a->type == MEMORY_HOST && b->type == MEMORY_DEVICE   ? H2D :
				   a->type == MEMORY_DEVICE && b->type == MEMORY_HOST   ? D2H :
				   a->type == MEMORY_DEVICE && b->type == MEMORY_DEVICE ? D2D :
											  UNSAID;

	if (captured(stream, NODE_COPY))
		return COUNTED(SUCCESS);
	from += a->y * a->pitch + a->x;
	to += b->y * b->pitch + b->x;
	for (size_t y = 0; y < it->height; y++)
		memmove((char *)to + y * b->pitch, (char *)from + y * a->pitch, it->width);
	note(direction, to, from, it->width * it->height);
	return COUNTED(SUCCESS);
}

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes)
{
	COUNT;
	memset((void *)to, value, bytes);
	return COUNTED(SUCCESS);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	COUNT;
	if (!captured(stream, NODE_FILL))
		memset((void *)to, value, bytes);
	return COUNTED(SUCCESS);
}

API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t words, CUstream stream)
{
	COUNT;
	if (!captured(stream, NODE_FILL))
		for (size_t i = 0; i < words; i++)
			((unsigned *)to)[i] = value;
	return COUNTED(SUCCESS);
}
