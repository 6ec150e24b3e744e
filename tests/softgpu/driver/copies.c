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

	if (!are_kept())
		return;
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
	if (HOLLOW)
		return SUCCESS;
	if (unusable())
		return unusable();
	sleep_until(stream_end(NULL));
	return copy(direction, to, from, bytes);
}

static CUresult copy_later(enum direction direction, uint64_t to, uint64_t from, uint64_t bytes, CUstream stream)
{
	if (HOLLOW)
		return SUCCESS;
	if (unusable())
		return unusable();
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
BOTH(cuMemcpyPeer, _ptds, (CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes),
     ((void)at, (void)of, copy_later(D2D, to, from, bytes, NULL)))
BOTH(cuMemcpyPeerAsync, _ptsz,
     (CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes, CUstream stream),
     ((void)at, (void)of, copy_later(D2D, to, from, bytes, stream)))

/* Descriptions of 2D copies and of 3D ones have the same fields. */
#define HOST_SIDE(side) ((side).type == MEMORY_HOST ? (uint64_t)(side).host : (side).device)

static enum direction direction_between(int source, int target)
{
	return source == MEMORY_HOST && target == MEMORY_DEVICE	  ? H2D :
	       source == MEMORY_DEVICE && target == MEMORY_HOST	  ? D2H :
	       source == MEMORY_DEVICE && target == MEMORY_DEVICE ? D2D :
								    UNSAID;
}

static CUresult copy_3d(const CUcopy3D *it, CUstream stream, int later)
{
	const CUside3D *a = &it->source, *b = &it->target;
	uint64_t from, to;

	if (HOLLOW)
		return it ? SUCCESS : INVALID_VALUE;
	if (unusable())
		return unusable();
	if (a->type == MEMORY_ARRAY || b->type == MEMORY_ARRAY)
		return NOT_SUPPORTED;
	if (!later)
		sleep_until(stream_end(NULL));
	from = HOST_SIDE(*a) + (a->z * a->height + a->y) * a->pitch + a->x;
	to = HOST_SIDE(*b) + (b->z * b->height + b->y) * b->pitch + b->x;
	if (later && captured(stream, NODE_COPY)) {
		note("recorded", direction_between(a->type, b->type), to, from, it->width * it->height * it->depth);
		return SUCCESS;
	}
	for (size_t z = 0; z < it->depth; z++)
		for (size_t y = 0; y < it->height; y++)
			memmove((char *)to + (z * b->height + y) * b->pitch, (char *)from + (z * a->height + y) * a->pitch,
				it->width);
	note("copied", direction_between(a->type, b->type), to, from, it->width * it->height * it->depth);
	return SUCCESS;
}

static CUresult copy_2d(const CUcopy2D *it, CUstream stream, int later)
{
	const CUside *a = &it->source, *b = &it->target;

	if (HOLLOW)
		return it ? SUCCESS : INVALID_VALUE;
	CUcopy3D flat = {
		.source = {.x = a->x, .y = a->y, .type = a->type, .host = a->host, .device = a->device, .pitch = a->pitch},
		.target = {.x = b->x, .y = b->y, .type = b->type, .host = b->host, .device = b->device, .pitch = b->pitch},
		.width = it->width,
		.height = it->height,
		.depth = 1,
	};
	return copy_3d(&flat, stream, later);
}

BOTH(cuMemcpy2D_v2, _ptds, (const CUcopy2D *it), copy_2d(it, NULL, 0))
BOTH(cuMemcpy2DAsync_v2, _ptsz, (const CUcopy2D *it, CUstream stream), copy_2d(it, stream, 1))
BOTH(cuMemcpy3D_v2, _ptds, (const CUcopy3D *it), copy_3d(it, NULL, 0))
BOTH(cuMemcpy3DAsync_v2, _ptsz, (const CUcopy3D *it, CUstream stream), copy_3d(it, stream, 1))

static CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUstream stream)
{
	CUresult code = count ? SUCCESS : INVALID_VALUE;

	for (size_t i = 0; !HOLLOW && i < count && !code; i++)
		code = copy_later(UNSAID, to[i], from[i], bytes[i], stream);
	return code;
}

BOTH(cuMemcpyBatchAsync_v2, _ptsz,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t copies, void *attributes, size_t *indices,
      size_t attribute_count, CUstream stream),
     ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, copies, stream)))

/* Copies of arrays, which the soft GPU does not have, and 3D ones by descriptions of CUDA 12.8 and later. */
static CUresult unmade(size_t copies)
{
	return !HOLLOW ? NOT_SUPPORTED : copies ? SUCCESS : INVALID_VALUE;
}

BOTH(cuMemcpyHtoA_v2, _ptds, (void *to, size_t at, const void *from, size_t bytes),
     ((void)to, (void)at, (void)from, unmade(bytes)))
BOTH(cuMemcpyAtoH_v2, _ptds, (void *to, void *from, size_t at, size_t bytes),
     ((void)to, (void)at, (void)from, unmade(bytes)))
BOTH(cuMemcpyAtoA_v2, _ptds, (void *to, size_t at, void *from, size_t there, size_t bytes),
     ((void)to, (void)at, (void)from, (void)there, unmade(bytes)))
BOTH(cuMemcpy3DBatchAsync_v2, _ptsz, (size_t copies, void *list, unsigned long long flags, CUstream stream),
     ((void)list, (void)flags, (void)stream, unmade(copies)))
BOTH(cuMemcpy3DWithAttributesAsync, _ptsz, (void *it, unsigned long long flags, CUstream stream),
     ((void)flags, (void)stream, unmade(it != NULL)))

static CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	if (unusable())
		return unusable();
	if (!captured(stream, NODE_FILL))
		memset((void *)to, value, bytes);
	return SUCCESS;
}

static CUresult fill_words(CUdeviceptr to, unsigned value, size_t words, CUstream stream)
{
	if (unusable())
		return unusable();
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
