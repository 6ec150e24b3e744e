/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML that PyTorch's allocator and NCCL call, over the GPUs that the soft driver has: no NVLink. The NVML
 * that the exporter is tested with is tests/standins/libnvidia-ml.c. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int
#define FIRST_BUS 0x18 /* as in tests/standins/libnvidia-ml.c */
enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
typedef struct {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char text[32];
} address;

static unsigned count(void)
{
	const char *set = getenv("SOFTGPU_DEVICES");

	return set ? (unsigned)atoi(set) : 2;
}

/* A handle is the GPU's number and 1. */
static unsigned number(void *gpu)
{
	return (unsigned)(uintptr_t)gpu - 1;
}

API nvmlInit_v2(void) { return SUCCESS; }
API nvmlInit(void) { return SUCCESS; }
API nvmlShutdown(void) { return SUCCESS; }

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
	return code ? "an error of the soft GPU" : "Success";
}

API nvmlSystemGetDriverVersion(char *text, unsigned room)
{
	snprintf(text, room, "580.0");
	return SUCCESS;
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	const char *set = getenv("SOFTGPU_VERSION");

	*version = set ? atoi(set) : 13000;
	return SUCCESS;
}

API nvmlDeviceGetCount_v2(unsigned *to)
{
	*to = count();
	return SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu)
{
	*gpu = (void *)(uintptr_t)(index + 1);
	return index < count() ? SUCCESS : INVALID_ARGUMENT;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **gpu)
{
	unsigned domain, bus;

	if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || bus < FIRST_BUS || bus >= FIRST_BUS + count())
		return NOT_FOUND;
	return nvmlDeviceGetHandleByIndex_v2(bus - FIRST_BUS, gpu);
}

/* Older names of the same, which NCCL looks up too. */
API nvmlDeviceGetCount(unsigned *to) { return nvmlDeviceGetCount_v2(to); }
API nvmlDeviceGetHandleByIndex(unsigned index, void **gpu) { return nvmlDeviceGetHandleByIndex_v2(index, gpu); }
API nvmlDeviceGetHandleByPciBusId(const char *text, void **gpu) { return nvmlDeviceGetHandleByPciBusId_v2(text, gpu); }

API nvmlDeviceGetIndex(void *gpu, unsigned *index)
{
	*index = number(gpu);
	return SUCCESS;
}

API nvmlDeviceGetName(void *gpu, char *text, unsigned room)
{
	(void)gpu;
	snprintf(text, room, "soft GPU");
	return SUCCESS;
}

API nvmlDeviceGetUUID(void *gpu, char *text, unsigned room)
{
	snprintf(text, room, "GPU-736f6674-2047-5055-0000-%012x", number(gpu));
	return SUCCESS;
}

API nvmlDeviceGetPciInfo_v3(void *gpu, address *to)
{
	memset(to, 0, sizeof(*to));
	to->bus = FIRST_BUS + number(gpu);
	snprintf(to->legacy, sizeof(to->legacy), "0000:%02X:00.0", to->bus);
	snprintf(to->text, sizeof(to->text), "00000000:%02X:00.0", to->bus);
	return SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses(void *gpu, unsigned *found, void *to)
{
	(void)gpu, (void)to;
	*found = 0;
	return SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *found, void *to)
{
	return nvmlDeviceGetComputeRunningProcesses(gpu, found, to);
}

API nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *state)
{
	(void)gpu, (void)link, (void)state;
	return NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkCapability(void *gpu, unsigned link, int capability, unsigned *has)
{
	(void)gpu, (void)link, (void)capability, (void)has;
	return NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned link, int *type)
{
	(void)gpu, (void)link, (void)type;
	return NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, address *to)
{
	(void)gpu, (void)link, (void)to;
	return NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkRemotePciInfo(void *gpu, unsigned link, address *to)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, link, to);
}

API nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor)
{
	(void)gpu;
	*major = 9; /* as the soft driver's devices.c has it */
	*minor = 0;
	return SUCCESS;
}

API nvmlDeviceGetP2PStatus(void *gpu, void *peer, int capability, int *status)
{
	(void)gpu, (void)peer, (void)capability;
	*status = 0; /* NVML_P2P_STATUS_OK */
	return SUCCESS;
}

API nvmlDeviceGetFieldValues(void *gpu, int number_of, void *to)
{
	(void)gpu, (void)number_of, (void)to;
	return NOT_SUPPORTED;
}

API nvmlDeviceGetGpuFabricInfoV(void *gpu, void *to)
{
	(void)gpu, (void)to;
	return NOT_SUPPORTED;
}
