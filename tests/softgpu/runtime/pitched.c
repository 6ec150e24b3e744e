/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in rows of a length that suits the device. */
#include "soft.h"

typedef struct {
	void *pointer;
	size_t pitch, width, height;
} pitched;
typedef struct {
	size_t width, height, depth;
} extent;

API cudaError_t cudaMallocPitch(void **to, size_t *pitch, size_t width, size_t height)
{
	COUNT;
	return CALL(cuMemAllocPitch_v2, (CUdeviceptr *)to, pitch, width, height, 4);
}

API cudaError_t cudaMalloc3D(pitched *to, extent size)
{
	COUNT;
	to->width = size.width;
	to->height = size.height;
	return CALL(cuMemAllocPitch_v2, (CUdeviceptr *)&to->pointer, &to->pitch, size.width, size.height * size.depth, 4);
}
