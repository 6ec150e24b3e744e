/* SPDX-License-Identifier: Apache-2.0 */
#include "soft.h"

#define P(address) ((CUdeviceptr)(address))

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	COUNT;
	switch (kind) {
	case COPY_H2D: return CALL(cuMemcpyHtoD_v2, P(to), from, bytes);
	case COPY_D2H: return CALL(cuMemcpyDtoH_v2, to, P(from), bytes);
	case COPY_D2D: return CALL(cuMemcpyDtoD_v2, P(to), P(from), bytes);
	default: return CALL(cuMemcpy, P(to), P(from), bytes);
	}
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, CUstream stream)
{
	COUNT;
	switch (kind) {
	case COPY_H2D: return CALL(cuMemcpyHtoDAsync_v2, P(to), from, bytes, stream);
	case COPY_D2H: return CALL(cuMemcpyDtoHAsync_v2, to, P(from), bytes, stream);
	case COPY_D2D: return CALL(cuMemcpyDtoDAsync_v2, P(to), P(from), bytes, stream);
	default: return CALL(cuMemcpyAsync, P(to), P(from), bytes, stream);
	}
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int at, const void *from, int of, size_t bytes, CUstream stream)
{
	COUNT;
	return CALL(cuMemcpyPeerAsync, P(to), context_of(at), P(from), context_of(of), bytes, stream);
}

cudaError_t copy_rows(rows it, int kind, CUstream stream)
{
	static const unsigned char types[][2] = {
		[COPY_H2H] = {MEMORY_HOST, MEMORY_HOST},     [COPY_H2D] = {MEMORY_HOST, MEMORY_DEVICE},
		[COPY_D2H] = {MEMORY_DEVICE, MEMORY_HOST},   [COPY_D2D] = {MEMORY_DEVICE, MEMORY_DEVICE},
		[COPY_DEFAULT] = {MEMORY_UNIFIED, MEMORY_UNIFIED},
	};

	if (kind < COPY_H2H || kind > COPY_DEFAULT)
		return INVALID_VALUE;
	CUcopy2D copy = {
		.source = {.type = types[kind][0], .host = (void *)it.from, .device = P(it.from), .pitch = it.from_pitch},
		.target = {.type = types[kind][1], .host = it.to, .device = P(it.to), .pitch = it.to_pitch},
		.width = it.width,
		.height = it.height,
	};
	return bind_thread() ?: D(cuMemcpy2DAsync_v2)(&copy, stream);
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
				  size_t height, int kind, CUstream stream)
{
	COUNT;
	return COUNTED(kept(copy_rows((rows){to, to_pitch, from, from_pitch, width, height}, kind, stream)));
}
