/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, made at once. Bytes are counted by direction and by what the host's side is: as the call has it, and
 * where it has not, as unified addressing does. */
#include <stdio.h>
#include <string.h>
#include "soft.h"

/* What a side is. Of two host sides the first of these that one of them is counts. */
enum side { ON_DEVICE, HOST_UNKNOWN, HOST_PAGEABLE, HOST_PINNED, HOST_MANAGED };
struct end {
	int type; /* MEMORY_HOST, MEMORY_DEVICE or MEMORY_UNIFIED */
	uint64_t address;
};

/* Device memory that a call has as the host's is no kind of host memory. */
static enum side side_of(struct end end)
{
	enum side otherwise = end.type == MEMORY_HOST ? HOST_UNKNOWN : ON_DEVICE;
	struct range range;

	if (end.type == MEMORY_DEVICE)
		return ON_DEVICE;
	if (!find_range(end.address, &range))
		return HOST_PAGEABLE;
	return range.kind == KIND_MANAGED ? HOST_MANAGED : is_device(&range) ? otherwise : HOST_PINNED;
}

/* Managed memory may be on either side. */
static const char *direction_of(struct end to, struct end from, enum side target, enum side source)
{
	if ((to.type == MEMORY_UNIFIED && target == HOST_MANAGED) || (from.type == MEMORY_UNIFIED && source == HOST_MANAGED))
		return "unknown";
	if (source == ON_DEVICE)
		return target == ON_DEVICE ? "d2d" : "d2h";
	return target == ON_DEVICE ? "h2d" : "h2h";
}

/* That bytes were copied, or that a capture recorded a copy of theirs. */
static void note(const char *what, struct end to, struct end from, uint64_t bytes)
{
	static const char *const kinds[] = {"", " unknown", " pageable", " pinned", " managed"};
	enum side target, source, host;
	char name[56];

	if (!are_kept())
		return;
	target = side_of(to), source = side_of(from);
	host = !source || (target && target < source) ? target : source;
	snprintf(name, sizeof(name), "%s %s%s", what, direction_of(to, from, target, source), kinds[host]);
	add_bytes(name, 1, bytes);
}

/* Of the host's addresses the driver knows as little as this one. */
static int is_valid(struct end end, uint64_t bytes)
{
	return end.address && (end.type != MEMORY_DEVICE || is_accessible(end.address, bytes));
}

static CUresult copy(struct end to, struct end from, uint64_t bytes)
{
	if (!bytes)
		return SUCCESS;
	if (!is_valid(to, bytes) || !is_valid(from, bytes))
		return INVALID_VALUE;
	memmove((void *)to.address, (void *)from.address, bytes);
	note("copied", to, from, bytes);
	return SUCCESS;
}

/* One that waits for what the legacy stream has to do. */
static CUresult copy_now(struct end to, struct end from, uint64_t bytes)
{
	if (HOLLOW)
		return SUCCESS;
	if (unusable())
		return unusable();
	sleep_until(stream_end(NULL));
	return copy(to, from, bytes);
}

static CUresult copy_later(struct end to, struct end from, uint64_t bytes, CUstream stream)
{
	if (HOLLOW)
		return SUCCESS;
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (!captured(stream, NODE_COPY))
		return copy(to, from, bytes);
	note("recorded", to, from, bytes);
	return SUCCESS;
}

#define HOST(address) ((struct end){MEMORY_HOST, (uint64_t)(address)})
#define DEVICE(address) ((struct end){MEMORY_DEVICE, address})
#define UNIFIED(address) ((struct end){MEMORY_UNIFIED, address})
#define TO(T, S) (T to, S from, size_t bytes)
#define TO_ASYNC(T, S) (T to, S from, size_t bytes, CUstream stream)
BOTH(cuMemcpy, _ptds, TO(CUdeviceptr, CUdeviceptr), copy_now(UNIFIED(to), UNIFIED(from), bytes))
BOTH(cuMemcpyAsync, _ptsz, TO_ASYNC(CUdeviceptr, CUdeviceptr), copy_later(UNIFIED(to), UNIFIED(from), bytes, stream))
BOTH(cuMemcpyHtoD_v2, _ptds, TO(CUdeviceptr, const void *), copy_now(DEVICE(to), HOST(from), bytes))
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, TO_ASYNC(CUdeviceptr, const void *), copy_later(DEVICE(to), HOST(from), bytes, stream))
BOTH(cuMemcpyDtoH_v2, _ptds, TO(void *, CUdeviceptr), copy_now(HOST(to), DEVICE(from), bytes))
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, TO_ASYNC(void *, CUdeviceptr), copy_later(HOST(to), DEVICE(from), bytes, stream))
BOTH(cuMemcpyDtoD_v2, _ptds, TO(CUdeviceptr, CUdeviceptr), copy_later(DEVICE(to), DEVICE(from), bytes, NULL))
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, TO_ASYNC(CUdeviceptr, CUdeviceptr), copy_later(DEVICE(to), DEVICE(from), bytes, stream))
BOTH(cuMemcpyPeer, _ptds, (CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes),
     ((void)at, (void)of, copy_later(DEVICE(to), DEVICE(from), bytes, NULL)))
BOTH(cuMemcpyPeerAsync, _ptsz,
     (CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes, CUstream stream),
     ((void)at, (void)of, copy_later(DEVICE(to), DEVICE(from), bytes, stream)))

/* Descriptions of 2D copies and of 3D ones have the same fields. */
#define SIDE(side) ((struct end){(side).type, (side).type == MEMORY_HOST ? (uint64_t)(side).host : (side).device})

static int is_type(int type)
{
	return type == MEMORY_HOST || type == MEMORY_DEVICE || type == MEMORY_UNIFIED;
}

/* Bytes from the address that a description gives to the end of what is copied. */
static uint64_t reach(const CUside3D *side, const CUcopy3D *it)
{
	uint64_t planes = side->z + it->depth - 1, rows = planes * side->height + side->y + it->height - 1;

	return rows * side->pitch + side->x + it->width;
}

static CUresult copy_3d(const CUcopy3D *it, CUstream stream, int later)
{
	const CUside3D *a = &it->source, *b = &it->target;
	struct end from, to;

	if (HOLLOW)
		return it ? SUCCESS : INVALID_VALUE;
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (a->type == MEMORY_ARRAY || b->type == MEMORY_ARRAY)
		return NOT_SUPPORTED;
	if (!is_type(a->type) || !is_type(b->type))
		return INVALID_VALUE;
	if (!it->width || !it->height || !it->depth)
		return SUCCESS;
	if (!is_valid(SIDE(*a), reach(a, it)) || !is_valid(SIDE(*b), reach(b, it)))
		return INVALID_VALUE;
	if (!later)
		sleep_until(stream_end(NULL));
	from = SIDE(*a), from.address += (a->z * a->height + a->y) * a->pitch + a->x;
	to = SIDE(*b), to.address += (b->z * b->height + b->y) * b->pitch + b->x;
	if (later && captured(stream, NODE_COPY)) {
		note("recorded", to, from, it->width * it->height * it->depth);
		return SUCCESS;
	}
	for (size_t z = 0; z < it->depth; z++)
		for (size_t y = 0; y < it->height; y++)
			memmove((char *)to.address + (z * b->height + y) * b->pitch,
				(char *)from.address + (z * a->height + y) * a->pitch, it->width);
	note("copied", to, from, it->width * it->height * it->depth);
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

/* The number of the copy that fails is stored. */
static CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, size_t *failed, CUstream stream)
{
	CUresult code = count ? SUCCESS : INVALID_VALUE;

	for (size_t i = 0; !HOLLOW && i < count && !code; i++) {
		code = copy_later(UNIFIED(to[i]), UNIFIED(from[i]), bytes[i], stream);
		if (code && failed)
			*failed = i;
	}
	return code;
}

BOTH(cuMemcpyBatchAsync_v2, _ptsz,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t copies, void *attributes, size_t *indices,
      size_t attribute_count, CUstream stream),
     ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, copies, NULL, stream)))

/* Of 12.8 and 12.9. */
BOTH(cuMemcpyBatchAsync, _ptsz,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t copies, void *attributes, size_t *indices,
      size_t attribute_count, size_t *failed, CUstream stream),
     ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, copies, failed, stream)))

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
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (!is_accessible(to, bytes))
		return INVALID_VALUE;
	if (!captured(stream, NODE_FILL) && !HOLLOW)
		memset((void *)to, value, bytes);
	return SUCCESS;
}

static CUresult fill_words(CUdeviceptr to, unsigned value, size_t words, CUstream stream)
{
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (to % sizeof(unsigned) || !is_accessible(to, words * sizeof(unsigned)))
		return INVALID_VALUE;
	if (!captured(stream, NODE_FILL) && !HOLLOW)
		for (size_t i = 0; i < words; i++)
			((unsigned *)to)[i] = value;
	return SUCCESS;
}

BOTH(cuMemsetD8_v2, _ptds, (CUdeviceptr to, unsigned char value, size_t bytes), fill(to, value, bytes, NULL))
BOTH(cuMemsetD8Async, _ptsz, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream),
     fill(to, value, bytes, stream))
BOTH(cuMemsetD32_v2, _ptds, (CUdeviceptr to, unsigned value, size_t words), fill_words(to, value, words, NULL))
BOTH(cuMemsetD32Async, _ptsz, (CUdeviceptr to, unsigned value, size_t words, CUstream stream),
     fill_words(to, value, words, stream))
