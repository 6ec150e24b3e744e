/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "soft.h"

#define P(address) ((CUdeviceptr)(address))

API cudaError_t cudaMalloc(void **to, size_t bytes)
{
	COUNT;
	if (bytes)
		return CALL(cuMemAlloc_v2, (CUdeviceptr *)to, bytes);
	*to = NULL;
	return COUNTED(kept(bind_thread()));
}

API cudaError_t cudaMallocManaged(void **to, size_t bytes, unsigned flags)
{
	COUNT;
	return CALL(cuMemAllocManaged, (CUdeviceptr *)to, bytes, flags);
}

API cudaError_t cudaFree(void *address)
{
	COUNT;
	return address ? CALL(cuMemFree_v2, P(address)) : COUNTED(kept(bind_thread()));
}

API cudaError_t cudaMallocAsync(void **to, size_t bytes, CUstream stream)
{
	COUNT;
	return CALL(cuMemAllocAsync, (CUdeviceptr *)to, bytes, stream);
}

API cudaError_t cudaFreeAsync(void *address, CUstream stream)
{
	COUNT;
	return CALL(cuMemFreeAsync, P(address), stream);
}

API cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned flags)
{
	COUNT;
	return CALL(cuMemHostAlloc, to, bytes, flags);
}

API cudaError_t cudaMallocHost(void **to, size_t bytes)
{
	COUNT;
	return CALL(cuMemHostAlloc, to, bytes, 0);
}

API cudaError_t cudaFreeHost(void *address)
{
	COUNT;
	return address ? CALL(cuMemFreeHost, address) : COUNTED(kept(bind_thread()));
}

API cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags)
{
	COUNT;
	return CALL(cuMemHostRegister_v2, address, bytes, flags);
}

API cudaError_t cudaHostUnregister(void *address)
{
	COUNT;
	return CALL(cuMemHostUnregister, address);
}

API cudaError_t cudaHostGetDevicePointer(void **to, void *address, unsigned flags)
{
	COUNT;
	return CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr *)to, address, flags);
}

API cudaError_t cudaHostGetFlags(unsigned *flags, void *address)
{
	COUNT;
	return CALL(cuMemHostGetFlags, flags, address);
}

API cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
	COUNT;
	return CALL(cuMemGetInfo_v2, unused, total);
}

API cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
	COUNT;
	return CALL(cuMemsetD8_v2, P(to), value, bytes);
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, CUstream stream)
{
	COUNT;
	return CALL(cuMemsetD8Async, P(to), value, bytes, stream);
}

API cudaError_t cudaPointerGetAttributes(void *to, const void *address)
{
	COUNT;
	struct {
		int type, device;
		void *on_device, *on_host;
		long reserved[RELEASE == 13 ? 8 : 0];
	} found = {0};
	unsigned type = 0;
	unsigned char managed = 0;
	int which[] = {POINTER_MEMORY_TYPE, POINTER_DEVICE_ORDINAL, POINTER_DEVICE_POINTER, POINTER_HOST_POINTER,
		       POINTER_IS_MANAGED};
	void *into[] = {&type, &found.device, &found.on_device, &found.on_host, &managed};

	cudaError_t code = bind_thread() ?: D(cuPointerGetAttributes)(5, which, into, P(address));
	if (code)
		return COUNTED(kept(code));
	found.type = managed ? 3 : (int)type;
	if (!type)
		found.on_host = (void *)address;
	memcpy(to, &found, sizeof(found));
	return COUNTED(SUCCESS);
}

API cudaError_t cudaIpcGetMemHandle(CUipcHandle *handle, void *address)
{
	COUNT;
	return CALL(cuIpcGetMemHandle, handle, P(address));
}

API cudaError_t cudaIpcOpenMemHandle(void **to, CUipcHandle handle, unsigned flags)
{
	COUNT;
	return CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *)to, handle, flags);
}

API cudaError_t cudaIpcCloseMemHandle(void *address)
{
	COUNT;
	return CALL(cuIpcCloseMemHandle, P(address));
}

API cudaError_t cudaIpcGetEventHandle(CUipcHandle *handle, CUevent event)
{
	COUNT;
	return CALL(cuIpcGetEventHandle, handle, event);
}

API cudaError_t cudaIpcOpenEventHandle(CUevent *event, CUipcHandle handle)
{
	COUNT;
	return CALL(cuIpcOpenEventHandle, event, handle);
}
