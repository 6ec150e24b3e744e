/* SPDX-License-Identifier: Apache-2.0 */
#include "soft.h"

#define P(address) ((CUdeviceptr)(address))

API cudaError_t cudaMallocFromPoolAsync(void **to, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	COUNT;
	return CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *)to, bytes, pool, stream);
}

OWN_DEFAULT(cudaMallocFromPoolAsync_ptsz, (void **to, size_t bytes, CUmemoryPool pool, CUstream stream),
	    kept(bind_thread() ?: D(cuMemAllocFromPoolAsync)((CUdeviceptr *)to, bytes, pool, stream)))

API cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *pool, int device)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceGetDefaultMemPool, pool, device);
}

API cudaError_t cudaDeviceGetMemPool(CUmemoryPool *pool, int device)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceGetMemPool, pool, device);
}

API cudaError_t cudaDeviceSetMemPool(int device, CUmemoryPool pool)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceSetMemPool, device, pool);
}

API cudaError_t cudaMemPoolCreate(CUmemoryPool *pool, const CUpoolProperties *wanted)
{
	COUNT;
	return CALL(cuMemPoolCreate, pool, wanted);
}

API cudaError_t cudaMemPoolDestroy(CUmemoryPool pool)
{
	COUNT;
	return CALL(cuMemPoolDestroy, pool);
}

API cudaError_t cudaMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	COUNT;
	return CALL(cuMemPoolGetAttribute, pool, attribute, value);
}

API cudaError_t cudaMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	COUNT;
	return CALL(cuMemPoolSetAttribute, pool, attribute, value);
}

API cudaError_t cudaMemPoolSetAccess(CUmemoryPool pool, const CUaccess *access, size_t count_)
{
	COUNT;
	return CALL(cuMemPoolSetAccess, pool, access, count_);
}

API cudaError_t cudaMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	COUNT;
	return CALL(cuMemPoolTrimTo, pool, keep);
}

API cudaError_t cudaMemPoolExportToShareableHandle(void *to, CUmemoryPool pool, int type, unsigned flags)
{
	COUNT;
	return CALL(cuMemPoolExportToShareableHandle, to, pool, type, flags);
}

API cudaError_t cudaMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned flags)
{
	COUNT;
	return CALL(cuMemPoolImportFromShareableHandle, pool, handle, type, flags);
}

API cudaError_t cudaMemPoolExportPointer(CUipcHandle *to, void *address)
{
	COUNT;
	return CALL(cuMemPoolExportPointer, to, P(address));
}

API cudaError_t cudaMemPoolImportPointer(void **address, CUmemoryPool pool, const CUipcHandle *from)
{
	COUNT;
	return CALL(cuMemPoolImportPointer, (CUdeviceptr *)address, pool, from);
}
