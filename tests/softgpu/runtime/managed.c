/* SPDX-License-Identifier: Apache-2.0 */
#include "soft.h"

#define P(address) ((CUdeviceptr)(address))

#if RELEASE < 13
static CUlocation place_of(int device)
{
	return (CUlocation){device == -1 ? LOCATION_HOST : LOCATION_DEVICE, device};
}

API cudaError_t cudaMemPrefetchAsync(const void *begin, size_t bytes, int device, CUstream stream)
{
	COUNT;
	return CALL(cuMemPrefetchAsync_v2, P(begin), bytes, place_of(device), 0, stream);
}

API cudaError_t cudaMemAdvise(const void *begin, size_t bytes, int advice, int device)
{
	COUNT;
	return CALL(cuMemAdvise_v2, P(begin), bytes, advice, place_of(device));
}
#define PREFETCH cudaMemPrefetchAsync_v2
#define ADVISE cudaMemAdvise_v2
#else
#define PREFETCH cudaMemPrefetchAsync
#define ADVISE cudaMemAdvise
#endif

#if RELEASE > 11
API cudaError_t PREFETCH(const void *begin, size_t bytes, CUlocation at, unsigned flags, CUstream stream)
{
	COUNT;
	return CALL(cuMemPrefetchAsync_v2, P(begin), bytes, at, flags, stream);
}

API cudaError_t ADVISE(const void *begin, size_t bytes, int advice, CUlocation at)
{
	COUNT;
	return CALL(cuMemAdvise_v2, P(begin), bytes, advice, at);
}
#endif
