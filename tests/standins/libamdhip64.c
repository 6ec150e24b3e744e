/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libamdhip64 (AMD's HIP runtime): names and signatures of hip_runtime_api.h, memory of the host, kernels
 * that do nothing. As in AMD's 5.2, hipMemcpyPeer is made of hipMemcpy and hipMemAllocHost of hipHostMalloc. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int hipError_t;
typedef int hipMemcpyKind;
typedef void *hipStream_t;
typedef struct {
	uint32_t x, y, z;
} dim3;
typedef struct {
	size_t width, height, depth;
} hipExtent;
typedef struct {
	void *ptr;
	size_t pitch, xsize, ysize;
} hipPitchedPtr;
typedef struct {
	void *srcArray;
	size_t srcPos[3];
	hipPitchedPtr srcPtr;
	void *dstArray;
	size_t dstPos[3];
	hipPitchedPtr dstPtr;
	hipExtent extent;
	hipMemcpyKind kind;
} hipMemcpy3DParms;
_Static_assert(sizeof(hipMemcpy3DParms) == 160, "hipMemcpy3DParms");
typedef struct {
	size_t source[7], target[7], WidthInBytes, Height;
} hip_Memcpy2D;
_Static_assert(sizeof(hip_Memcpy2D) == 128, "hip_Memcpy2D");

#define PITCH 256
#define DEVICES 4
enum { INVALID_VALUE = 1, INVALID_DEVICE = 101 };

static __thread int failure, current;
static __thread uint64_t stall;

/* Makes the next call of this thread fail. */
void standin_fail(int code)
{
	failure = code;
}

/* Makes each wait, synchronous copy, allocation and free of this thread take so long. */
void standin_stall(uint64_t ns)
{
	stall = ns;
}

static int failing(void)
{
	int code = failure;

	failure = 0;
	return code;
}

static int waiting(void)
{
	struct timespec pause = {stall / 1000000000, stall % 1000000000};

	if (stall)
		nanosleep(&pause, NULL);
	return failing();
}

static int allocating(void **at, size_t size)
{
	int code = waiting();

	if (!code)
		*at = size ? malloc(size) : NULL;
	return code;
}

static int freeing(void *at)
{
	int code = waiting();

	if (!code)
		free(at);
	return code;
}

hipError_t hipSetDevice(int device)
{
	int code = failing();

	if (code)
		return code;
	if (device < 0 || device >= DEVICES)
		return INVALID_DEVICE;
	current = device;
	return 0;
}

hipError_t hipInit(unsigned int flags)
{
	(void)flags;
	return failing();
}

hipError_t hipGetDevice(int *device)
{
	*device = current;
	return failing();
}

/* A context is the device's number + 1. */
hipError_t hipCtxSetCurrent(void *ctx)
{
	int code = failing();

	if (!code && ctx)
		current = (int)(uintptr_t)ctx - 1;
	return code;
}

hipError_t hipStreamCreate(hipStream_t *stream)
{
	return allocating(stream, 32);
}

hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags)
{
	(void)flags;
	return allocating(stream, 32);
}

hipError_t hipStreamDestroy(hipStream_t stream)
{
	return stream ? freeing(stream) : INVALID_VALUE;
}

/* clang-format off */
hipError_t hipMalloc(void **at, size_t size) { return allocating(at, size); }
hipError_t hipExtMallocWithFlags(void **at, size_t size, unsigned flags) { (void)flags; return allocating(at, size); }
hipError_t hipMallocManaged(void **at, size_t size, unsigned flags) { (void)flags; return allocating(at, size); }
hipError_t hipMallocFromPoolAsync(void **at, size_t size, void *pool, hipStream_t stream) { (void)pool, (void)stream; return allocating(at, size); }
hipError_t hipMallocAsync(void **at, size_t size, hipStream_t stream) { (void)stream; return allocating(at, size); }
hipError_t hipStreamBeginCapture(hipStream_t stream, int mode) { (void)stream, (void)mode; return failing(); }
hipError_t hipStreamEndCapture(hipStream_t stream, void **graph) { (void)stream, (void)graph; return failing(); }
hipError_t hipHostMalloc(void **at, size_t size, unsigned flags) { (void)flags; return allocating(at, size); }
hipError_t hipMemAllocHost(void **at, size_t size) { return hipHostMalloc(at, size, 0); }
hipError_t hipHostRegister(void *at, size_t size, unsigned flags) { (void)at, (void)size, (void)flags; return failing(); }
hipError_t hipHostUnregister(void *at) { (void)at; return failing(); }
hipError_t hipFree(void *at) { return freeing(at); }
hipError_t hipFreeAsync(void *at, hipStream_t stream) { (void)stream; return freeing(at); }
hipError_t hipHostFree(void *at) { return freeing(at); }
hipError_t hipDeviceReset(void) { return failing(); }
hipError_t hipMemCreate(void **handle, size_t size, const void *prop, uint64_t flags) { (void)prop, (void)flags; return allocating(handle, size); }
hipError_t hipDeviceSynchronize(void) { return waiting(); }
hipError_t hipStreamSynchronize(hipStream_t stream) { (void)stream; return waiting(); }
hipError_t hipStreamSynchronize_spt(hipStream_t stream) { (void)stream; return waiting(); }
hipError_t hipEventSynchronize(void *event) { (void)event; return waiting(); }
/* clang-format on */

hipError_t hipMallocPitch(void **at, size_t *pitch, size_t width, size_t height)
{
	*pitch = (width + PITCH - 1) / PITCH * PITCH;
	return allocating(at, *pitch * height);
}

hipError_t hipMalloc3D(hipPitchedPtr *made, hipExtent extent)
{
	made->pitch = (extent.width + PITCH - 1) / PITCH * PITCH;
	made->xsize = extent.width;
	made->ysize = extent.height;
	return allocating(&made->ptr, made->pitch * extent.height * extent.depth);
}

hipError_t hipMemcpy(void *dst, const void *src, size_t size, hipMemcpyKind kind)
{
	int code = waiting();

	(void)kind;
	if (!code)
		memcpy(dst, src, size);
	return code;
}

hipError_t hipMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t size)
{
	(void)dst_device, (void)src_device;
	return hipMemcpy(dst, src, size, 4);
}

/* Copies of which the tests look at the sizes only. */
#define COPIES(name, ...)                                                                                    \
	hipError_t name(__VA_ARGS__)                                                                         \
	{                                                                                                    \
		return failing();                                                                            \
	}
#pragma GCC diagnostic ignored "-Wunused-parameter"
COPIES(hipMemcpyAsync, void *dst, const void *src, size_t size, hipMemcpyKind kind, hipStream_t stream)
COPIES(hipMemcpyAsync_spt, void *dst, const void *src, size_t size, hipMemcpyKind kind, hipStream_t stream)
COPIES(hipMemcpyHtoD, void *dst, void *src, size_t size)
COPIES(hipMemcpyDtoHAsync, void *dst, void *src, size_t size, hipStream_t stream)
COPIES(hipMemcpyAtoH, void *dst, void *src, size_t offset, size_t size)
COPIES(hipMemcpyToSymbol, const void *symbol, const void *src, size_t size, size_t offset, hipMemcpyKind kind)
COPIES(hipMemcpyToArray, void *dst, size_t w, size_t h, const void *src, size_t size, hipMemcpyKind kind)
COPIES(hipMemcpy2D, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
       hipMemcpyKind kind)
COPIES(hipMemcpy2DToArray, void *dst, size_t w, size_t h, const void *src, size_t spitch, size_t width,
       size_t height, hipMemcpyKind kind)
COPIES(hipMemcpy2DArrayToArray, void *dst, size_t dw, size_t dh, const void *src, size_t sw, size_t sh,
       size_t width, size_t height, hipMemcpyKind kind)
COPIES(hipMemcpyParam2D, const hip_Memcpy2D *copy)
COPIES(hipMemcpy3D, const hipMemcpy3DParms *copy)
COPIES(hipDrvMemcpy3D, const void *copy)

hipError_t hipLaunchKernel(const void *function, dim3 blocks, dim3 threads, void **args, size_t shared,
			   hipStream_t stream)
{
	return failing();
}

hipError_t hipLaunchCooperativeKernel_spt(const void *function, dim3 blocks, dim3 threads, void **args,
					  uint32_t shared, hipStream_t stream)
{
	return failing();
}

hipError_t hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
				 unsigned by, unsigned bz, unsigned shared, hipStream_t stream, void **params,
				 void **extra)
{
	return failing();
}

/* hipExtModuleLaunchKernel, as C++ has it in HIP 5. */
hipError_t _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j(
    void *function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t lx, uint32_t ly, uint32_t lz,
    size_t shared, hipStream_t stream, void **params, void **extra, void *start, void *stop, uint32_t flags)
{
	return failing();
}

typedef struct {
	dim3 blocks, threads;
	size_t shared;
	hipStream_t stream;
	void *attributes;
	unsigned count;
} hipLaunchConfig_t;

hipError_t hipLaunchKernelExC(const hipLaunchConfig_t *config, const void *function, void **args)
{
	return failing();
}

hipError_t hipExtLaunchMultiKernelMultiDevice(void *launches, int count, unsigned flags)
{
	return failing();
}

hipError_t hipGraphLaunch(void *graph, hipStream_t stream)
{
	return failing();
}
