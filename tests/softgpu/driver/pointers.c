/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver knows of an address. */
#include "soft.h"

static CUresult attribute_of(void *to, int attribute, const struct range *it, uint64_t address)
{
	switch (attribute) {
	case POINTER_CONTEXT: *(CUcontext *)to = it ? it->context : NULL; break;
	case POINTER_MEMORY_TYPE: *(unsigned *)to = !it ? 0 : is_device(it) ? MEMORY_DEVICE : MEMORY_HOST; break;
	case POINTER_DEVICE_POINTER: *(uint64_t *)to = it ? address : 0; break;
	case POINTER_HOST_POINTER:
		*(uint64_t *)to = it && (!is_device(it) || it->kind == KIND_MANAGED) ? address : 0;
		break;
	case POINTER_SYNC_MEMOPS: *(unsigned char *)to = 0; break;
	case POINTER_BUFFER_ID: *(uint64_t *)to = it ? it->id : 0; break;
	case POINTER_IS_MANAGED: *(unsigned char *)to = it && it->kind == KIND_MANAGED; break;
	case POINTER_DEVICE_ORDINAL: *(int *)to = it ? it->device : -2; break;
	case POINTER_IS_IPC_CAPABLE: *(int *)to = it && it->kind == KIND_DEVICE; break;
	case POINTER_RANGE_START: *(uint64_t *)to = it ? it->begin : 0; break;
	case POINTER_RANGE_SIZE: *(size_t *)to = it ? it->end - it->begin : 0; break;
	case POINTER_MAPPED: *(unsigned char *)to = it != NULL; break;
	case POINTER_HANDLE_TYPES: *(uint64_t *)to = it && it->kind == KIND_VMM; break;
	case POINTER_ACCESS_FLAGS: *(int *)to = 3; break;
	case POINTER_POOL: *(CUmemoryPool *)to = it ? it->pool : NULL; break;
	default: return INVALID_VALUE;
	}
	return SUCCESS;
}

API CUresult cuPointerGetAttribute(void *to, int attribute, CUdeviceptr address)
{
	COUNT;
	struct range range;

	return COUNTED(find_range(address, &range) ? attribute_of(to, attribute, &range, address) : INVALID_VALUE);
}

/* Of an address that it does not know the driver gives zeros here, and no error. */
API CUresult cuPointerGetAttributes(unsigned count_, int *attributes, void **to, CUdeviceptr address)
{
	COUNT;
	struct range range;
	int known = find_range(address, &range);

	for (unsigned i = 0; i < count_; i++)
		attribute_of(to[i], attributes[i], known ? &range : NULL, address);
	return COUNTED(SUCCESS);
}
