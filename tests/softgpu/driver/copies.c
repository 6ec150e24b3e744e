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

/* That bytes were copied, or that a capture recorded a copy of theirs. */
static void note(const char *what, enum direction direction, uint64_t to, uint64_t from, uint64_t bytes)
{
	char name[56];

	if (direction == UNSAID)
		direction = direction_of(to, from);
	if (direction == H2D)
		snprintf(name, sizeof(name), "%s h2d %s", what, host_kind(from));
	else if (direction == D2H)
		snprintf(name, sizeof(name), "%s d2h %s", what, host_kind(to));
	else
		snprintf(name, sizeof(name), "%s %s", what, direction == UNSAID ? "h2h" : "d2d");
	add_bytes(name, 1, bytes);
}

static CUresult copy(enum direction direction, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (!to || !from)
		return bytes ? INVALID_VALUE : SUCCESS;
	memmove((void *)to, (void *)from, bytes);
	note("copied", direction, to, from, bytes);
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
	if (!captured(stream, NODE_COPY))
		return copy(direction, to, from, bytes);
	note("recorded", direction, to, from, bytes);
	return SUCCESS;
}

#define TO(T, S) (T to, S from, size_t bytes)
#define TO_ASYNC(T, S) (T to, S from, size_t bytes, CUstream stream)
BOTH(cuMemcpy, _ptds, TO(CUdeviceptr, CUdeviceptr), copy_now(UNSAID, to, from, bytes))
BOTH(cuMemcpyAsync, _ptsz, TO_ASYNC(CUdeviceptr, CUdeviceptr), copy_later(UNSAID, to, from, bytes, stream))
BOTH(cuMemcpyHtoD_v2, _ptds, TO(CUdeviceptr, const void *), copy_now(H2D, to, (uint64_t)from, bytes))
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, TO_ASYNC(CUdeviceptr, const void *), copy_later(H2D, to, (uint64_t)from, bytes, stream))
BOTH(cuMemcpyDtoH_v2, _ptds, TO(void *, CUdeviceptr), copy_now(D2H, (uint64_t)to, from, bytes))
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, TO_ASYNC(void *, CUdeviceptr), copy_later(D2H, (uint64_t)to, from, bytes, stream))
BOTH(cuMemcpyDtoD_v2, _ptds, TO(CUdeviceptr, CUdeviceptr), copy_later(D2D, to, from, bytes, NULL))
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, TO_ASYNC(CUdeviceptr, CUdeviceptr), copy_later(D2D, to, from, bytes, stream))
BOTH(cuMemcpyPeerAsync, _ptsz,
     (CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes, CUstream stream),
     ((void)at, (void)of, copy_later(D2D, to, from, bytes, stream)))

static CUresult copy_2d(const CUcopy2D *it, CUstream stream)
{
	const CUside *a = &it->source, *b = &it->target;
	uint64_t from = a->type == MEMORY_HOST ? (uint64_t)a->host : a->device;
	uint64_t to = b->type == MEMORY_HOST ? (uint64_t)b->host : b->device;
	enum direction direction = a->type == MEMORY_HOST && b->type == MEMORY_DEVICE   ? H2D :
				   a->type == MEMORY_DEVICE && b->type == MEMORY_HOST   ? D2H :
				   a->type == MEMORY_DEVICE && b->type == MEMORY_DEVICE ? D2D :
											  UNSAID;

	if (captured(stream, NODE_COPY)) {
		note("recorded", direction, to, from, it->width * it->height);
		return SUCCESS;
	}
	from += a->y * a->pitch + a->x;
	to += b->y * b->pitch + b->x;
	for (size_t y = 0; y < it->height; y++)
		memmove((char *)to + y * b->pitch, (char *)from + y * a->pitch, it->width);
	note("copied", direction, to, from, it->width * it->height);
	return SUCCESS;
}

BOTH(cuMemcpy2DAsync_v2, _ptsz, (const CUcopy2D *it, CUstream stream), copy_2d(it, stream))

static CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	if (!captured(stream, NODE_FILL))
		memset((void *)to, value, bytes);
	return SUCCESS;
}

static CUresult fill_words(CUdeviceptr to, unsigned value, size_t words, CUstream stream)
{
	if (!captured(stream, NODE_FILL))
		for (size_t i = 0; i < words; i++)
			((unsigned *)to)[i] = value;
	return SUCCESS;
}

BOTH(cuMemsetD8_v2, _ptds, (CUdeviceptr to, unsigned char value, size_t bytes), fill(to, value, bytes, NULL))
BOTH(cuMemsetD8Async, _ptsz, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream),
     fill(to, value, bytes, stream))
BOTH(cuMemsetD32Async, _ptsz, (CUdeviceptr to, unsigned value, size_t words, CUstream stream),
     fill_words(to, value, words, stream))
