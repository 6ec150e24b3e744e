/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations of the CUDA driver that libcuda.so.1 and libcudart share, our own, with CUDA's names and values. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int CUresult, CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct executable *CUgraphExec;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct pool *CUmemoryPool;
typedef struct physical *CUmemHandle;

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	PEER_ACCESS_UNSUPPORTED = 217,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_FOUND = 500,
	NOT_READY = 600,
	PEER_ACCESS_ALREADY_ENABLED = 704,
	PEER_ACCESS_NOT_ENABLED,
	CONTEXT_DESTROYED = 709,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURE_UNMATCHED = 903,
	CAPTURE_WRONG_THREAD = 908,
	UPDATE_FAILURE = 910
};
enum { MEMORY_HOST = 1, MEMORY_DEVICE, MEMORY_ARRAY, MEMORY_UNIFIED };
enum { LOCATION_DEVICE = 1, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_HOST_NUMA_CURRENT };
enum { HANDLE_POSIX_FD = 1 };
enum { PER_THREAD_DEFAULT_STREAM = 2 };
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_IS_INVALIDATED };
enum { NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_HOST, NODE_CHILD, NODE_EMPTY, NODE_ALLOCATION = 10, NODE_FREE };
enum { POOL_THRESHOLD = 4, POOL_RESERVED, POOL_RESERVED_HIGH, POOL_USED, POOL_USED_HIGH };
enum {
	POINTER_CONTEXT = 1,
	POINTER_MEMORY_TYPE,
	POINTER_DEVICE_POINTER,
	POINTER_HOST_POINTER,
	POINTER_SYNC_MEMOPS = 6,
	POINTER_BUFFER_ID,
	POINTER_IS_MANAGED,
	POINTER_DEVICE_ORDINAL,
	POINTER_IS_IPC_CAPABLE,
	POINTER_RANGE_START,
	POINTER_RANGE_SIZE,
	POINTER_MAPPED,
	POINTER_HANDLE_TYPES,
	POINTER_ACCESS_FLAGS = 16,
	POINTER_POOL
};

typedef struct {
	unsigned char bytes[16];
} CUuuid;
typedef struct {
	unsigned char bytes[64];
} CUipcHandle;
typedef struct {
	int type, id;
} CUlocation;
typedef struct {
	int type, handle_types;
	CUlocation location;
	void *unused;
	unsigned char flags[8];
} CUallocation;
typedef struct {
	int type, handle_types;
	CUlocation location;
	void *unused;
	size_t most; /* 0: as much as there is */
	unsigned char rest[56];
} CUpoolProperties;
typedef struct {
	CUlocation location;
	int flags;
} CUaccess;
typedef struct {
	size_t x, y;
	int type;
	void *host;
	CUdeviceptr device;
	void *array;
	size_t pitch;
} CUside;
typedef struct {
	CUside source, target;
	size_t width, height;
} CUcopy2D;
typedef struct {
	size_t x, y, z, level;
	int type;
	void *host;
	CUdeviceptr device;
	void *array, *context;
	size_t pitch, height;
} CUside3D;
typedef struct {
	CUside3D source, target;
	size_t width, height, depth;
} CUcopy3D;
typedef struct {
	int result;
	CUgraphNode at, from;
} CUgraphUpdate;
typedef struct {
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned count;
} CUlaunch;

/* What the runtime calls of the driver. */
CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int room, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device);
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetLimit(size_t *value, int limit);
CUresult cuCtxSetLimit(int limit, size_t value);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr begin, size_t bytes, CUlocation at, unsigned flags, CUstream stream);
CUresult cuMemAdvise_v2(CUdeviceptr begin, size_t bytes, int advice, CUlocation at);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProperties *wanted);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolExportToShareableHandle(void *to, CUmemoryPool pool, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags);
CUresult cuMemPoolExportPointer(CUipcHandle *to, CUdeviceptr address);
CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, const CUipcHandle *from);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUaccess *access, size_t count);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *address);
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *address);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags);
CUresult cuMemHostGetFlags(unsigned *flags, void *address);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
CUresult cuMemGetInfo_v2(size_t *unused, size_t *total);
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext at, CUdeviceptr from, CUcontext of, size_t bytes, CUstream stream);
CUresult cuMemcpy2DAsync_v2(const CUcopy2D *copy, CUstream stream);
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream);
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address);
CUresult cuIpcGetMemHandle(CUipcHandle *handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CUresult cuIpcGetEventHandle(CUipcHandle *handle, CUevent event);
CUresult cuIpcOpenEventHandle(CUevent *event, CUipcHandle handle);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamGetPriority(CUstream stream, int *priority);
CUresult cuStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **dependencies, size_t *count);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags);
CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphUpdate *to);
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec executable);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
							      size_t shared, unsigned flags);
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
			unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernelEx(const CUlaunch *launch, CUfunction function, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
				   unsigned bz, unsigned shared, CUstream stream, void **parameters);
CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status);

/* Not CUDA's: orders for the driver in the process that calls it. */
/* Waits last until so many nanoseconds from now, or longer. */
void standin_busy(CUstream stream, uint64_t ns);
/* The next wait takes so long from its call on, or longer. */
void standin_wait(uint64_t ns);
/* Calls of this name on this thread return this code (NULL: none does). */
void standin_fail(const char *name, CUresult code);
/* The next allocation on this thread takes so long. */
void standin_stall(uint64_t ns);
/* Memory of a variable that no module has. */
CUresult standin_variable(CUdeviceptr *address, size_t bytes);
