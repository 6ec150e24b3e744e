/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the CUDA driver: its names and signatures, no GPU. Device addresses lie in a range nobody may
 * touch; host memory is real; waits last as long as standin_busy() set; CUDA_STANDIN_BYTES bounds device
 * memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "cuda.h"

#define DEVICE_RANGE (1ull << 42)
#define BLOCKS 200000
#define PITCH 512

struct context {
	CUdevice device;
};
struct block {
	uint64_t address, bytes;
	void *memory;
	struct block *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *used[4096], *unused;
static uint64_t next_address, in_use, busy_until, next_wait;
static uint64_t next_handle = 0x1000;
static struct context primaries[16];
static int primary_holders[16];
static __thread CUcontext stack[16];
static __thread int depth;
static __thread const char *failing;
static __thread CUresult failure;
static __thread uint64_t stall;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void standin_busy(CUstream stream, uint64_t ns)
{
	(void)stream;
	__atomic_store_n(&busy_until, now() + ns, __ATOMIC_SEQ_CST);
}

void standin_wait(uint64_t ns)
{
	__atomic_store_n(&next_wait, ns, __ATOMIC_SEQ_CST);
}

void standin_stall(uint64_t ns)
{
	stall = ns;
}

void standin_fail(const char *name, CUresult code)
{
	failing = name;
	failure = code;
}

/* Every function begins with this: the code that was set for it, or none. */
#define MAY_FAIL                                                                                             \
	do {                                                                                                 \
		if (failing && !strcmp(failing, __func__))                                                   \
			return failure;                                                                      \
	} while (0)

static uint64_t capacity(void)
{
	const char *set = getenv("CUDA_STANDIN_BYTES");
	return set ? strtoull(set, NULL, 0) : 80ull << 30;
}

static struct block **bucket(uint64_t address)
{
	return &used[address / 256 % 4096];
}

/* A freed address is given out again at once when the size fits, as drivers do. */
static uint64_t allocate(uint64_t bytes, void *memory)
{
	uint64_t room = (bytes + 511) & ~511ull;
	struct block *block = NULL;

	pthread_mutex_lock(&lock);
	if (!next_address)
		next_address = (uint64_t)mmap(NULL, DEVICE_RANGE, PROT_NONE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!memory && in_use + bytes > capacity())
		goto out;
	if (!memory)
		for (struct block **at = &unused; *at; at = &(*at)->next)
			if (((*at)->bytes + 511) / 512 == room / 512) {
				block = *at;
				*at = block->next;
				break;
			}
	if (!block) {
		block = calloc(1, sizeof(*block));
		block->address = memory ? (uint64_t)memory : next_address;
		if (!memory)
			next_address += room;
	}
	block->memory = memory;
	block->bytes = bytes;
	block->next = *bucket(block->address);
	*bucket(block->address) = block;
	in_use += memory ? 0 : bytes;
out:
	pthread_mutex_unlock(&lock);
	return block ? block->address : 0;
}

static CUresult release(uint64_t address, CUresult unknown)
{
	struct block *block = NULL;

	pthread_mutex_lock(&lock);
	for (struct block **at = bucket(address); *at; at = &(*at)->next)
		if ((*at)->address == address) {
			block = *at;
			*at = block->next;
			break;
		}
	if (block && block->memory) {
		free(block);
	} else if (block) {
		in_use -= block->bytes;
		block->next = unused;
		unused = block;
	}
	pthread_mutex_unlock(&lock);
	return block ? SUCCESS : unknown;
}

static CUresult device_memory(CUdeviceptr *out, size_t bytes)
{
	struct timespec t = {stall / 1000000000, stall % 1000000000};

	if (stall)
		nanosleep(&t, NULL);
	stall = 0;
	if (!bytes)
		return INVALID_VALUE;
	*out = allocate(bytes, NULL);
	return *out ? SUCCESS : OUT_OF_MEMORY;
}

static CUresult host_memory(void **out, size_t bytes)
{
	if (!bytes)
		return INVALID_VALUE;
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (*out == MAP_FAILED)
		return OUT_OF_MEMORY;
	allocate(bytes, *out);
	return SUCCESS;
}

static CUresult wait(void)
{
	uint64_t own = now() + __atomic_exchange_n(&next_wait, 0, __ATOMIC_SEQ_CST);
	uint64_t busy, until;
	struct timespec t;

	do {
		busy = __atomic_load_n(&busy_until, __ATOMIC_SEQ_CST);
		until = busy > own ? busy : own;
		t = (struct timespec){until / 1000000000, until % 1000000000};
	} while (until > now() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR);
	return SUCCESS;
}

/* One body a variant, as the driver has. */
#define PLAIN(name, parameters, ...)                                                                         \
	CUresult name parameters                                                                             \
	{                                                                                                    \
		MAY_FAIL;                                                                                    \
		__VA_ARGS__                                                                                  \
	}
#define PTSZ(name, parameters, ...)                                                                          \
	PLAIN(name, parameters, __VA_ARGS__) PLAIN(name##_ptsz, parameters, __VA_ARGS__)
#define PTDS(name, parameters, ...)                                                                          \
	PLAIN(name, parameters, __VA_ARGS__) PLAIN(name##_ptds, parameters, __VA_ARGS__)

PLAIN(cuInit, (unsigned flags), { return flags ? INVALID_VALUE : SUCCESS; })
PLAIN(cuDeviceGet, (CUdevice * out, int ordinal), {
	*out = ordinal;
	return SUCCESS;
})

PLAIN(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes), { return device_memory(out, bytes); })
PLAIN(cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned flags),
      { return flags ? host_memory((void **)out, bytes) : INVALID_VALUE; })
PLAIN(cuMemAllocPitch_v2, (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element), {
	(void)element;
	*pitch = (width + PITCH - 1) / PITCH * PITCH;
	return device_memory(out, *pitch * height);
})
PTSZ(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream), {
	(void)stream;
	return device_memory(out, bytes);
})
PTSZ(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t bytes, void *pool, CUstream stream), {
	(void)stream, (void)pool;
	return device_memory(out, bytes);
})
PLAIN(cuMemFree_v2, (CUdeviceptr address), { return address ? release(address, INVALID_VALUE) : SUCCESS; })
PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), {
	(void)stream;
	return release(address, INVALID_VALUE);
})
PLAIN(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), {
	(void)flags;
	return host_memory(out, bytes);
})
PLAIN(cuMemAllocHost_v2, (void **out, size_t bytes), { return host_memory(out, bytes); })
PLAIN(cuMemFreeHost, (void *address), { return release((uint64_t)address, INVALID_VALUE); })
PLAIN(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags), {
	(void)flags;
	allocate(bytes, address);
	return SUCCESS;
})
PLAIN(cuMemHostUnregister, (void *address), { return release((uint64_t)address, NOT_REGISTERED); })

PLAIN(cuMemCreate, (CUhandle * out, size_t bytes, const allocation_properties *properties, uint64_t flags), {
	(void)properties;
	if (flags || !bytes)
		return INVALID_VALUE;
	*out = __atomic_fetch_add(&next_handle, 16, __ATOMIC_SEQ_CST);
	return SUCCESS;
})
PLAIN(cuMemImportFromShareableHandle, (CUhandle * out, void *shared, int type), {
	(void)shared, (void)type;
	*out = __atomic_fetch_add(&next_handle, 16, __ATOMIC_SEQ_CST);
	return SUCCESS;
})
PLAIN(cuMulticastCreate, (CUhandle * out, const void *properties), {
	(void)properties;
	*out = __atomic_fetch_add(&next_handle, 16, __ATOMIC_SEQ_CST);
	return SUCCESS;
})
PLAIN(cuMemPoolCreate, (CUhandle * out, const void *properties), {
	(void)properties;
	*out = __atomic_fetch_add(&next_handle, 16, __ATOMIC_SEQ_CST);
	return SUCCESS;
})
PLAIN(cuMemGetMemPool, (CUhandle * out, const void *location, int type), {
	(void)location, (void)type;
	*out = 1;
	return SUCCESS;
})
PLAIN(cuMemRelease, (CUhandle handle), { return handle ? SUCCESS : INVALID_VALUE; })
PLAIN(cuMemAddressReserve,
      (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr wish, uint64_t flags), {
	      (void)alignment, (void)wish, (void)flags;
	      return device_memory(out, bytes);
      })
static struct {
	CUdeviceptr address;
	CUhandle handle;
} last_map;
PLAIN(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, uint64_t flags), {
	(void)bytes, (void)offset, (void)flags;
	last_map.address = address;
	last_map.handle = handle;
	return SUCCESS;
})
PLAIN(cuMemUnmap, (CUdeviceptr address, size_t bytes), {
	(void)bytes;
	return address ? SUCCESS : INVALID_VALUE;
})
PLAIN(cuMemRetainAllocationHandle, (CUhandle * out, void *address), {
	if ((CUdeviceptr)address != last_map.address)
		return INVALID_VALUE;
	*out = last_map.handle;
	return SUCCESS;
})

#define LAUNCH                                                                                               \
	(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,              \
	 unsigned shared, CUstream stream, void **parameters, void **extra)
#define LAUNCHED                                                                                             \
	{                                                                                                    \
		(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared,           \
		    (void)stream, (void)parameters, (void)extra;                                             \
		return SUCCESS;                                                                              \
	}
#define COOPERATIVE                                                                                          \
	(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,              \
	 unsigned shared, CUstream stream, void **parameters)
#define COOPERATED                                                                                           \
	{                                                                                                    \
		(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared,           \
		    (void)stream, (void)parameters;                                                          \
		return SUCCESS;                                                                              \
	}
PTSZ(cuLaunchKernel, LAUNCH, LAUNCHED)
PTSZ(cuLaunchKernelEx, (const void *config, void *f, void **parameters, void **extra), {
	(void)config, (void)f, (void)parameters, (void)extra;
	return SUCCESS;
})
PTSZ(cuLaunchCooperativeKernel, COOPERATIVE, COOPERATED)
PTSZ(cuGraphLaunch, (void *graph, CUstream stream), {
	(void)graph, (void)stream;
	return SUCCESS;
})

#define TO(T, S) (T to, S from, size_t bytes)
#define TO_ASYNC(T, S) (T to, S from, size_t bytes, CUstream stream)
#define COPIED                                                                                               \
	{                                                                                                    \
		(void)to, (void)from;                                                                        \
		return bytes ? SUCCESS : INVALID_VALUE;                                                      \
	}
#define COPIED_ASYNC                                                                                         \
	{                                                                                                    \
		(void)to, (void)from, (void)stream;                                                          \
		return bytes ? SUCCESS : INVALID_VALUE;                                                      \
	}
PTDS(cuMemcpy, TO(CUdeviceptr, CUdeviceptr), COPIED)
PTSZ(cuMemcpyAsync, TO_ASYNC(CUdeviceptr, CUdeviceptr), COPIED_ASYNC)
PTDS(cuMemcpyHtoD_v2, TO(CUdeviceptr, const void *), COPIED)
PTSZ(cuMemcpyHtoDAsync_v2, TO_ASYNC(CUdeviceptr, const void *), COPIED_ASYNC)
PTDS(cuMemcpyDtoH_v2, TO(void *, CUdeviceptr), COPIED)
PTSZ(cuMemcpyDtoHAsync_v2, TO_ASYNC(void *, CUdeviceptr), COPIED_ASYNC)
PTDS(cuMemcpyDtoD_v2, TO(CUdeviceptr, CUdeviceptr), COPIED)
PTSZ(cuMemcpyDtoDAsync_v2, TO_ASYNC(CUdeviceptr, CUdeviceptr), COPIED_ASYNC)
PTDS(cuMemcpyPeer, (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes), {
	(void)to, (void)there, (void)from, (void)here, (void)bytes;
	return SUCCESS;
})
PTSZ(cuMemcpyPeerAsync,
     (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream), {
	     (void)to, (void)there, (void)from, (void)here, (void)bytes, (void)stream;
	     return SUCCESS;
     })
PTDS(cuMemcpyHtoA_v2, (void *array, size_t at, const void *from, size_t bytes), {
	(void)array, (void)at, (void)from, (void)bytes;
	return SUCCESS;
})
PTDS(cuMemcpyAtoH_v2, (void *to, void *array, size_t at, size_t bytes), {
	(void)array, (void)at, (void)to, (void)bytes;
	return SUCCESS;
})
PTDS(cuMemcpyAtoA_v2, (void *to, size_t at, void *from, size_t there, size_t bytes), {
	(void)to, (void)at, (void)from, (void)there, (void)bytes;
	return SUCCESS;
})
PTDS(cuMemcpy2D_v2, (const copy_2d *copy), { return copy ? SUCCESS : INVALID_VALUE; })
PTSZ(cuMemcpy2DAsync_v2, (const copy_2d *copy, CUstream stream), {
	(void)stream;
	return copy ? SUCCESS : INVALID_VALUE;
})
PTDS(cuMemcpy3D_v2, (const copy_3d *copy), { return copy ? SUCCESS : INVALID_VALUE; })
PTSZ(cuMemcpy3DAsync_v2, (const copy_3d *copy, CUstream stream), {
	(void)stream;
	return copy ? SUCCESS : INVALID_VALUE;
})
PTSZ(cuMemcpyBatchAsync_v2,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes, size_t *indices,
      size_t attribute_count, CUstream stream),
     {
	     (void)to, (void)from, (void)bytes, (void)attributes, (void)indices, (void)attribute_count,
		 (void)stream;
	     return count ? SUCCESS : INVALID_VALUE;
     })

PTSZ(cuMemcpy3DBatchAsync_v2, (size_t count, void *copies, unsigned long long flags, CUstream stream), {
	(void)copies, (void)flags, (void)stream;
	return count ? SUCCESS : INVALID_VALUE;
})
PTSZ(cuMemcpy3DWithAttributesAsync, (void *copy, unsigned long long flags, CUstream stream), {
	(void)flags, (void)stream;
	return copy ? SUCCESS : INVALID_VALUE;
})

PTSZ(cuStreamSynchronize, (CUstream stream), {
	(void)stream;
	return wait();
})
PLAIN(cuEventSynchronize, (void *event), {
	(void)event;
	return wait();
})
PLAIN(cuCtxSynchronize, (void), { return wait(); })

PLAIN(cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device), {
	(void)flags;
	*out = calloc(1, sizeof(**out));
	(*out)->device = device;
	stack[depth++] = *out;
	return SUCCESS;
})
PLAIN(cuCtxDestroy_v2, (CUcontext context), {
	if (depth && stack[depth - 1] == context)
		depth--;
	return context ? SUCCESS : INVALID_CONTEXT;
})
PLAIN(cuCtxSetCurrent, (CUcontext context), {
	depth -= depth > 0;
	if (context)
		stack[depth++] = context;
	return SUCCESS;
})
PLAIN(cuCtxPushCurrent_v2, (CUcontext context), {
	stack[depth++] = context;
	return SUCCESS;
})
PLAIN(cuCtxPopCurrent_v2, (CUcontext * out), {
	if (!depth)
		return INVALID_CONTEXT;
	*out = stack[--depth];
	return SUCCESS;
})
PLAIN(cuCtxGetCurrent, (CUcontext * out), {
	*out = depth ? stack[depth - 1] : NULL;
	return SUCCESS;
})
PLAIN(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), {
	__atomic_fetch_add(&primary_holders[device], 1, __ATOMIC_SEQ_CST);
	*out = &primaries[device];
	return SUCCESS;
})
PLAIN(cuDevicePrimaryCtxRelease_v2, (CUdevice device), {
	if (!primary_holders[device])
		return INVALID_CONTEXT;
	__atomic_fetch_sub(&primary_holders[device], 1, __ATOMIC_SEQ_CST);
	return SUCCESS;
})
PLAIN(cuDevicePrimaryCtxReset_v2, (CUdevice device), { return device < 0 ? INVALID_VALUE : SUCCESS; })

/* As the driver's: the newest variant of a name, the per-thread-stream one if the flags want it. */
PLAIN(cuGetProcAddress_v2, (const char *name, void **out, int version, uint64_t flags, int *status), {
	static const char *const variants[] = {"_v2_ptsz", "_v2_ptds", "_ptsz", "_ptds", "_v2", ""};
	char full[128];
	Dl_info self;
	void *library;

	(void)version;
	dladdr((void *)cuInit, &self);
	library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	*out = NULL;
	for (int i = flags & PER_THREAD_DEFAULT_STREAM ? 0 : 4; i < 6 && !*out; i++) {
		snprintf(full, sizeof(full), "%s%s", name, variants[i]);
		*out = dlsym(library, full);
	}
	if (status)
		*status = *out ? 0 : 1;
	return *out ? SUCCESS : INVALID_VALUE;
})
