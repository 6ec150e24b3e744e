/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../gpus.h"
#include "soft.h"

#define CHECK_DEVICE(device)                                                                                 \
	if ((device) < 0 || (device) >= device_count())                                                      \
	return COUNTED(INVALID_DEVICE)

static int visible[MAX_DEVICES], visible_count; /* from the first call on, as CUDA has it */

uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *set = getenv(name);

	return set ? strtoull(set, NULL, 0) : otherwise;
}

static int all_devices(void)
{
	uint64_t count = setting("SOFTGPU_DEVICES", DEFAULT_GPUS);

	return count > MAX_DEVICES ? MAX_DEVICES : (int)count;
}

/* The GPU of an entry of CUDA_VISIBLE_DEVICES: its number, or the beginning of a UUID that no other GPU has; or -1. */
static int entry(const char *text, size_t length)
{
	char *end, uuid[48];
	int found = -1, many = 0;
	long number;

	while (length && *text == ' ')
		text++, length--;
	while (length && text[length - 1] == ' ')
		length--;
	number = strtol(text, &end, 10);
	if (length && end == text + length)
		return number >= 0 && number < all_devices() ? number : -1;
	if (length < 5 || strncmp(text, "GPU-", 4))
		return -1;
	for (int gpu = 0; gpu < all_devices(); gpu++) {
		snprintf(uuid, sizeof(uuid), GPU_UUID, gpu);
		if (!strncmp(uuid, text, length))
			found = gpu, many++;
	}
	return many == 1 ? found : -1;
}

/* An invalid entry ends the list, and one that comes twice leaves nothing of it. */
static void look(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");

	if (!list)
		while (visible_count < all_devices())
			visible[visible_count] = visible_count, visible_count++;
	for (size_t length; list && visible_count < MAX_DEVICES; list += length + 1) {
		int gpu = entry(list, length = strcspn(list, ","));

		if (gpu < 0)
			return;
		for (int i = 0; i < visible_count; i++)
			if (visible[i] == gpu) {
				visible_count = 0;
				return;
			}
		visible[visible_count++] = gpu;
		if (!list[length])
			return;
	}
}

int device_count(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, look);
	return visible_count;
}

int physical(int device)
{
	return device < device_count() ? visible[device] : -1;
}

int place(const CUlocation *at)
{
	if (at->type == LOCATION_DEVICE && at->id >= 0 && at->id < device_count())
		return at->id;
	return at->type >= LOCATION_HOST && at->type <= LOCATION_HOST_NUMA_CURRENT ? IN_HOST_MEMORY : NOWHERE;
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
	snprintf(name, room, GPU_NAME);
	return COUNTED(SUCCESS);
}

static CUresult write_uuid(CUuuid *uuid, CUdevice device)
{
	if (device < 0 || device >= device_count())
		return INVALID_DEVICE;
	*uuid = (CUuuid){.bytes[15] = physical(device)};
	return SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	COUNT;
	return COUNTED(write_uuid(uuid, device));
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	COUNT;
	return COUNTED(write_uuid(uuid, device));
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
