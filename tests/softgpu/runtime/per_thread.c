/* SPDX-License-Identifier: Apache-2.0 */
/* For programs in which each thread has a default stream of its own (nvcc --default-stream per-thread): these functions
 * call the driver's variants of that name. */
#include "soft.h"

#define P(address) ((CUdeviceptr)(address))
#define VARIANT(name, suffix, ...)                                                                           \
	({                                                                                                   \
		static __typeof__(&name) function_;                                                          \
		if (!function_)                                                                              \
			function_ = (__typeof__(&name))driver(#name #suffix);                                \
		COUNTED(kept(bind_thread() ?: function_(__VA_ARGS__)));                                      \
	})

API cudaError_t cudaLaunchKernel_ptsz(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
				      CUstream stream)
{
	COUNT;
	return VARIANT(cuLaunchKernel, _ptsz, function_of(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
		       stream, arguments, NULL);
}

API cudaError_t cudaGraphLaunch_ptsz(CUgraphExec executable, CUstream stream)
{
	COUNT;
	return VARIANT(cuGraphLaunch, _ptsz, executable, stream);
}

API cudaError_t cudaMallocAsync_ptsz(void **to, size_t bytes, CUstream stream)
{
	COUNT;
	return VARIANT(cuMemAllocAsync, _ptsz, (CUdeviceptr *)to, bytes, stream);
}

API cudaError_t cudaFreeAsync_ptsz(void *address, CUstream stream)
{
	COUNT;
	return VARIANT(cuMemFreeAsync, _ptsz, P(address), stream);
}

API cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, int kind)
{
	COUNT;
	switch (kind) {
	case COPY_H2D: return VARIANT(cuMemcpyHtoD_v2, _ptds, P(to), from, bytes);
	case COPY_D2H: return VARIANT(cuMemcpyDtoH_v2, _ptds, to, P(from), bytes);
	case COPY_D2D: return VARIANT(cuMemcpyDtoD_v2, _ptds, P(to), P(from), bytes);
	default: return VARIANT(cuMemcpy, _ptds, P(to), P(from), bytes);
	}
}

API cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, CUstream stream)
{
	COUNT;
	switch (kind) {
	case COPY_H2D: return VARIANT(cuMemcpyHtoDAsync_v2, _ptsz, P(to), from, bytes, stream);
	case COPY_D2H: return VARIANT(cuMemcpyDtoHAsync_v2, _ptsz, to, P(from), bytes, stream);
	case COPY_D2D: return VARIANT(cuMemcpyDtoDAsync_v2, _ptsz, P(to), P(from), bytes, stream);
	default: return VARIANT(cuMemcpyAsync, _ptsz, P(to), P(from), bytes, stream);
	}
}

API cudaError_t cudaStreamSynchronize_ptsz(CUstream stream)
{
	COUNT;
	return VARIANT(cuStreamSynchronize, _ptsz, stream);
}
