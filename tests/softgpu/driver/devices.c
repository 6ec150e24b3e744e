/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "soft.h"

#define CHECK_DEVICE(device)                                                                                 \
	if ((device) < 0 || (device) >= device_count())                                                      \
	return COUNTED(INVALID_DEVICE)
#define FIRST_BUS 0x18 /* as in tests/standins/libnvidia-ml.c */

uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *set = getenv(name);

	return set ? strtoull(set, NULL, 0) : otherwise;
}

static int all_devices(void)
{
	uint64_t count = setting("SOFTGPU_DEVICES", 2);

	return count > MAX_DEVICES ? MAX_DEVICES : (int)count;
}

/* The GPU that the process has at this place of its list, -1 behind the end: a number that there is not ends it. */
int physical(int device)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char *end;

	if (!visible)
		return device < all_devices() ? device : -1;
	for (;; visible = end + 1) {
		long gpu = strtol(visible, &end, 10);

		if (end == visible || gpu < 0 || gpu >= all_devices())
			return -1;
		if (!device--)
			return gpu;
		if (*end != ',')
			return -1;
	}
}

int device_count(void)
{
	int count = 0;

	while (count < MAX_DEVICES && physical(count) >= 0)
		count++;
	return count;
}

size_t capacity(void)
{
	return setting("SOFTGPU_BYTES", 80ull << 30);
}

API CUresult cuInit(unsigned flags)
{
	COUNT;
	(void)flags;
	return COUNTED(device_count() ? SUCCESS : NO_DEVICE);
}

API CUresult cuDriverGetVersion(int *version)
{
	COUNT;
	*version = setting("SOFTGPU_VERSION", 13000);
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGetCount(int *count_)
{
	COUNT;
	*count_ = device_count();
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	COUNT;
	CHECK_DEVICE(ordinal);
	*device = ordinal;
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
	COUNT;
	CHECK_DEVICE(device);
	snprintf(name, room, "soft GPU");
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	COUNT;
	CHECK_DEVICE(device);
	memset(uuid->bytes, 0, 16);
	uuid->bytes[15] = physical(device);
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	COUNT;
	CHECK_DEVICE(device);
	*bytes = capacity();
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device)
{
	COUNT;
	CHECK_DEVICE(device);
	snprintf(text, room, "0000:%02X:00.0", FIRST_BUS + physical(device));
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	COUNT;
	unsigned domain, bus;

	if (sscanf(text, "%x:%x:", &domain, &bus) != 2)
		return COUNTED(INVALID_DEVICE);
	for (*device = 0; *device < device_count(); ++*device)
		if (bus == (unsigned)FIRST_BUS + physical(*device))
			return COUNTED(SUCCESS);
	return COUNTED(INVALID_DEVICE);
}

/* By CUDA's number of the attribute; about those of an H100. What is not here is 0. */
static const int attributes[160] = {
	[1] = 1024,       [2] = 1024,         [3] = 1024,       [4] = 64,     /* threads, block */
	[5] = 0x7fffffff, [6] = 65535,        [7] = 65535,                    /* grid */
	[8] = 49152,      [9] = 65536,        [10] = 32,        [11] = 0x7fffffff, [12] = 65536,
	[13] = 1980000,   [14] = 512,         [16] = 132,       [19] = 1,     [31] = 1,
	[32] = 1,         [36] = 2619000,     [37] = 5120,      [38] = 52428800,   [39] = 2048,
	[40] = 3,         [41] = 1,           [51] = 32,        [75] = 9,     [76] = 0,
	[78] = 1,         [79] = 1,           [80] = 1,         [81] = 233472,     [82] = 65536,
	[83] = 1,         [89] = 1,           [90] = 1,         [91] = 1,     [95] = 1,
	[97] = 232448,    [99] = 1,           [102] = 1 /* VMM */, [103] = 1 /* by file descriptor */,
	[106] = 32,       [111] = 1024,       [115] = 1 /* pools */, [120] = 1,    [129] = 1,
};

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	COUNT;
	CHECK_DEVICE(device);
	*value = attribute == 33 ? FIRST_BUS + physical(device) : attribute > 0 && attribute < 160 ? attributes[attribute] : 0;
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	COUNT;
	CHECK_DEVICE(device);
	*major = attributes[75];
	*minor = attributes[76];
	return COUNTED(SUCCESS);
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	COUNT;
	CHECK_DEVICE(device);
	CHECK_DEVICE(peer);
	*can = device != peer;
	return COUNTED(SUCCESS);
}

API CUresult cuGetErrorName(CUresult error, const char **text)
{
	COUNT;
	*text = error ? "CUDA_ERROR_OF_SOFTGPU" : "CUDA_SUCCESS";
	return COUNTED(SUCCESS);
}

API CUresult cuGetErrorString(CUresult error, const char **text)
{
	COUNT;
	*text = error ? "an error of the soft GPU" : "no error";
	return COUNTED(SUCCESS);
}
