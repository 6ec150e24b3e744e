/* SPDX-License-Identifier: Apache-2.0 */
/* For programs in which each thread has a default stream of its own (nvcc --default-stream per-thread): these functions
 * call the driver's variants of that name. */
#include "soft.h"

#define P(address) ((CUdeviceptr)(address))
#define PTSZ(name, parameters, ...) OWN_DEFAULT(name##_ptsz, parameters, kept(bind_thread() ?: (__VA_ARGS__)))
#define PTDS(name, parameters, ...) OWN_DEFAULT(name##_ptds, parameters, kept(bind_thread() ?: (__VA_ARGS__)))
#define SHAPE dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream
#define GIVEN grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, arguments

PTSZ(cudaLaunchKernel, (const void *kernel, SHAPE), D(cuLaunchKernel)(function_of(kernel), GIVEN, NULL))
PTSZ(cudaLaunchCooperativeKernel, (const void *kernel, SHAPE), D(cuLaunchCooperativeKernel)(function_of(kernel), GIVEN))
PTSZ(cudaLaunchKernelExC, (const struct launch *it, const void *kernel, void **arguments),
     ({
	     CUlaunch launch = launch_of(it);

	     D(cuLaunchKernelEx)(&launch, function_of(kernel), arguments, NULL);
     }))
PTSZ(cudaLaunchHostFunc, (CUstream stream, void (*function)(void *), void *data),
     D(cuLaunchHostFunc)(stream, function, data))
PTSZ(cudaGraphLaunch, (CUgraphExec executable, CUstream stream), D(cuGraphLaunch)(executable, stream))

PTSZ(cudaMallocAsync, (void **to, size_t bytes, CUstream stream), D(cuMemAllocAsync)((CUdeviceptr *)to, bytes, stream))
PTSZ(cudaFreeAsync, (void *address, CUstream stream), D(cuMemFreeAsync)(P(address), stream))

static cudaError_t copy(void *to, const void *from, size_t bytes, int kind)
{
	switch (kind) {
	case COPY_H2D: return D(cuMemcpyHtoD_v2)(P(to), from, bytes);
	case COPY_D2H: return D(cuMemcpyDtoH_v2)(to, P(from), bytes);
	case COPY_D2D: return D(cuMemcpyDtoD_v2)(P(to), P(from), bytes);
	default: return D(cuMemcpy)(P(to), P(from), bytes);
	}
}

static cudaError_t copy_later(void *to, const void *from, size_t bytes, int kind, CUstream stream)
{
	switch (kind) {
	case COPY_H2D: return D(cuMemcpyHtoDAsync_v2)(P(to), from, bytes, stream);
	case COPY_D2H: return D(cuMemcpyDtoHAsync_v2)(to, P(from), bytes, stream);
	case COPY_D2D: return D(cuMemcpyDtoDAsync_v2)(P(to), P(from), bytes, stream);
	default: return D(cuMemcpyAsync)(P(to), P(from), bytes, stream);
	}
}

static cudaError_t copy_to_symbol(const void *host, const void *from, size_t bytes, size_t offset)
{
	void *to;

	return find_variable(&to, host) ?: D(cuMemcpyHtoD_v2)(P(to) + offset, from, bytes);
}

PTDS(cudaMemcpy, (void *to, const void *from, size_t bytes, int kind), copy(to, from, bytes, kind))
PTSZ(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, CUstream stream),
     copy_later(to, from, bytes, kind, stream))
PTSZ(cudaMemcpy2DAsync,
     (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
      CUstream stream),
     copy_rows((rows){to, to_pitch, from, from_pitch, width, height}, kind, stream))
PTDS(cudaMemcpyToSymbol, (const void *host, const void *from, size_t bytes, size_t offset, int kind),
     ((void)kind, copy_to_symbol(host, from, bytes, offset)))
PTDS(cudaMemset, (void *to, int value, size_t bytes), D(cuMemsetD8_v2)(P(to), value, bytes))
PTSZ(cudaMemsetAsync, (void *to, int value, size_t bytes, CUstream stream),
     D(cuMemsetD8Async)(P(to), value, bytes, stream))
#if RELEASE < 13
#define PLACE(device) ((CUlocation){(device) == -1 ? LOCATION_HOST : LOCATION_DEVICE, device})
PTSZ(cudaMemPrefetchAsync, (const void *begin, size_t bytes, int device, CUstream stream),
     D(cuMemPrefetchAsync_v2)(P(begin), bytes, PLACE(device), 0, stream))
#else
PTSZ(cudaMemPrefetchAsync, (const void *begin, size_t bytes, CUlocation at, unsigned flags, CUstream stream),
     D(cuMemPrefetchAsync_v2)(P(begin), bytes, at, flags, stream))
#endif
#if RELEASE == 12
PTSZ(cudaMemPrefetchAsync_v2, (const void *begin, size_t bytes, CUlocation at, unsigned flags, CUstream stream),
     D(cuMemPrefetchAsync_v2)(P(begin), bytes, at, flags, stream))
#endif

PTSZ(cudaStreamSynchronize, (CUstream stream), D(cuStreamSynchronize)(stream))
PTSZ(cudaStreamQuery, (CUstream stream), D(cuStreamQuery)(stream))
PTSZ(cudaStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), D(cuStreamWaitEvent)(stream, event, flags))
PTSZ(cudaStreamGetPriority, (CUstream stream, int *priority), D(cuStreamGetPriority)(stream, priority))
PTSZ(cudaStreamAddCallback,
     (CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags),
     D(cuStreamAddCallback)(stream, callback, data, flags))
PTSZ(cudaStreamBeginCapture, (CUstream stream, int mode), D(cuStreamBeginCapture_v2)(stream, mode))
PTSZ(cudaStreamEndCapture, (CUstream stream, CUgraph *graph), D(cuStreamEndCapture)(stream, graph))
PTSZ(cudaStreamIsCapturing, (CUstream stream, int *status), D(cuStreamIsCapturing)(stream, status))
#if RELEASE == 11
PTSZ(cudaStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *id),
     D(cuStreamGetCaptureInfo_v2)(stream, status, id, NULL, NULL, NULL))
#elif RELEASE == 13
PTSZ(cudaStreamGetCaptureInfo,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, const void **edges,
      size_t *count_),
     (edges ? (void)(*edges = NULL) : (void)0,
      D(cuStreamGetCaptureInfo_v2)(stream, status, id, graph, dependencies, count_)))
#endif
#if RELEASE < 13
PTSZ(cudaStreamGetCaptureInfo_v2,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count_),
     D(cuStreamGetCaptureInfo_v2)(stream, status, id, graph, dependencies, count_))
#endif
PTSZ(cudaEventRecord, (CUevent event, CUstream stream), D(cuEventRecord)(event, stream))
PTSZ(cudaEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
     D(cuEventRecordWithFlags)(event, stream, flags))
