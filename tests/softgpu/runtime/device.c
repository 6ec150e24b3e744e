/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>
#include "soft.h"

#define MAX_DEVICES 64

static __thread int device; /* while the thread has no current context */
static CUcontext contexts[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The program's calls of the driver choose a device too. */
int chosen_device(void)
{
	CUcontext context = NULL;
	CUdevice found;

	if (initialized() || D(cuCtxGetCurrent)(&context) || !context || D(cuCtxGetDevice)(&found))
		return device;
	return found;
}

static cudaError_t retain(int of)
{
	cudaError_t code = SUCCESS;
	CUcontext made;

	pthread_mutex_lock(&lock);
	if (!contexts[of]) {
		code = D(cuDevicePrimaryCtxRetain)(&made, of);
		contexts[of] = code ? NULL : made;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

CUcontext context_of(int of)
{
	return retain(of) ? NULL : contexts[of];
}

cudaError_t bind_thread(void)
{
	cudaError_t code = initialized();
	CUcontext context = NULL;

	if (code || (!D(cuCtxGetCurrent)(&context) && context))
		return code;
	return retain(device) ?: D(cuCtxSetCurrent)(contexts[device]);
}

/* The device's primary context replaces any other that is current. */
static cudaError_t choose(int to)
{
	cudaError_t code = retain(to);
	CUcontext context = NULL;

	device = to;
	if (code || (!D(cuCtxGetCurrent)(&context) && context == contexts[to]))
		return code;
	return D(cuCtxSetCurrent)(contexts[to]);
}

static int exists(int of)
{
	int count = 0;

	D(cuDeviceGetCount)(&count);
	return of >= 0 && of < count;
}

API cudaError_t cudaGetDeviceCount(int *count_)
{
	COUNT;
	*count_ = 0;
	return WITHOUT_CONTEXT(cuDeviceGetCount, count_);
}

API cudaError_t cudaGetDevice(int *to)
{
	COUNT;
	*to = chosen_device();
	return COUNTED(kept(initialized()));
}

API cudaError_t cudaSetDevice(int to)
{
	COUNT;
	cudaError_t code = initialized();

	if (code || !exists(to))
		return COUNTED(kept(code ?: INVALID_DEVICE));
	return COUNTED(kept(choose(to)));
}

API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int of)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceGetAttribute, value, attribute, of);
}

API cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int of)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceGetPCIBusId, text, room, of);
}

API cudaError_t cudaDeviceGetByPCIBusId(int *to, const char *text)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceGetByPCIBusId, to, text);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int of, int peer)
{
	COUNT;
	return WITHOUT_CONTEXT(cuDeviceCanAccessPeer, can, of, peer);
}

/* Another device: its memory needs no access by itself. */
#define CALL_OF_PEER(name, peer, ...)                                                                        \
	COUNTED(kept(bind_thread() ?: exists(peer) && peer != chosen_device() ? D(name)(context_of(peer), ##__VA_ARGS__) : INVALID_DEVICE))

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
	COUNT;
	return CALL_OF_PEER(cuCtxEnablePeerAccess, peer, flags);
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
	COUNT;
	return CALL_OF_PEER(cuCtxDisablePeerAccess, peer);
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	COUNT;
	return CALL(cuCtxGetStreamPriorityRange, least, greatest);
}

API cudaError_t cudaDeviceSynchronize(void)
{
	COUNT;
	return CALL(cuCtxSynchronize);
}

/* The context stays with this runtime; what was allocated in it is gone. */
API cudaError_t cudaDeviceReset(void)
{
	COUNT;
	return CALL(cuDevicePrimaryCtxReset_v2, chosen_device());
}

API cudaError_t cudaDeviceGetLimit(size_t *value, int limit)
{
	COUNT;
	return CALL(cuCtxGetLimit, value, limit);
}

API cudaError_t cudaDeviceSetLimit(int limit, size_t value)
{
	COUNT;
	return CALL(cuCtxSetLimit, limit, value);
}

API cudaError_t cudaProfilerStart(void)
{
	COUNT;
	return CALL(cuProfilerStart);
}

API cudaError_t cudaProfilerStop(void)
{
	COUNT;
	return CALL(cuProfilerStop);
}

/* Fields of cudaDeviceProp: CUDA's number of the attribute, and where it lies in 12's structure and in 13's. 11's is
 * 12's without its end. */
static const struct {
	short attribute, at[2], bytes;
} fields[] = {
	{8, {296, 296}, 8},   {12, {304, 304}, 4},  {10, {308, 308}, 4}, {11, {312, 312}, 8},  {1, {320, 320}, 4},
	{2, {324, 324}, 4},   {3, {328, 328}, 4},   {4, {332, 332}, 4},  {5, {336, 336}, 4},   {6, {340, 340}, 4},
	{7, {344, 344}, 4},   {9, {352, 352}, 8},   {75, {360, 360}, 4}, {76, {364, 364}, 4},  {14, {368, 368}, 8},
	{51, {376, 376}, 8},  {16, {388, 384}, 4},  {19, {400, 392}, 4}, {31, {576, 560}, 4},  {32, {580, 564}, 4},
	{33, {584, 568}, 4},  {34, {588, 572}, 4},  {50, {592, 576}, 4}, {40, {600, 584}, 4},  {41, {604, 588}, 4},
	{37, {612, 592}, 4},  {38, {616, 596}, 4},  {39, {624, 604}, 4}, {78, {628, 608}, 4},  {81, {640, 624}, 8},
	{82, {648, 632}, 4},  {83, {652, 636}, 4},  {95, {688, 668}, 4}, {97, {696, 672}, 8},  {106, {712, 688}, 4},
	{111, {720, 696}, 8}, {115, {744, 720}, 4}, {120, {772, 748}, 4},
};
enum { UUID_AT = 256, MEMORY_AT = 288, BYTES = RELEASE == 11 ? 728 : RELEASE == 12 ? 1032 : 1008 };

static cudaError_t properties(char *to, int of)
{
	cudaError_t code = initialized();
	size_t memory;

	if (code || !exists(of))
		return code ?: INVALID_DEVICE;
	memset(to, 0, BYTES);
	D(cuDeviceGetName)(to, UUID_AT, of);
	D(cuDeviceGetUuid_v2)((CUuuid *)(to + UUID_AT), of);
	D(cuDeviceTotalMem_v2)(&memory, of);
	memcpy(to + MEMORY_AT, &memory, sizeof(memory));
	for (unsigned i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		int value = 0, at = fields[i].at[RELEASE == 13];

		if (at >= BYTES)
			continue;
		D(cuDeviceGetAttribute)(&value, fields[i].attribute, of);
		memcpy(to + at, &value, sizeof(value)); /* little endian: also of 8 bytes */
	}
	return SUCCESS;
}

#if RELEASE == 12
#define PROPERTIES cudaGetDeviceProperties_v2
#else
#define PROPERTIES cudaGetDeviceProperties
#endif
API cudaError_t PROPERTIES(void *to, int of)
{
	COUNT;
	return COUNTED(kept(properties(to, of)));
}
