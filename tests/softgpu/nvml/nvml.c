/* SPDX-License-Identifier: Apache-2.0 */
/* NVML for jobs on the soft GPU: the one that the exporter is tested with, about the GPUs of SOFTGPU_DEVICES and the
 * processes of SOFTGPU_COUNTS instead of a scenario's, with the functions that jobs call and the exporter does not. */
#define SOFT_GPUS_ONLY
#include "../../standins/libnvidia-ml.c"

static const char *defaults(void)
{
	static char text[sizeof DEFAULTS + 4096];
	const char *gpus = getenv("SOFTGPU_DEVICES"), *cuda = getenv("SOFTGPU_VERSION");
	const char *folder = getenv("SOFTGPU_COUNTS");

	if (*text)
		return text;
	snprintf(text, sizeof text,
		 "%sgpus=%d\ncuda=%s\ngpu.name=" GPU_NAME "\ngpu.memory_total=%" PRIu64 "\ngpu.memory_used=0\ngpu.memory_reserved=0\n"
		 "gpu.utilization=0\ngpu.memory_copy=0\ngpu.link_state=none\ngpu.field.91=none\ngpu.fabric_state=none\n%s%s\n",
		 DEFAULTS, gpus ? atoi(gpus) : DEFAULT_GPUS, cuda ? cuda : "13000",
		 bytes_of_gpu(), folder ? "softgpu=" : "", folder ? folder : "");
	return text;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex(unsigned index, struct device **device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, struct device **device)
{
	unsigned domain, bus;

	if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || bus < FIRST_BUS)
		return NOT_FOUND;
	return nvmlDeviceGetHandleByIndex_v2(bus - FIRST_BUS, device) ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId(const char *text, struct device **device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

int nvmlDeviceGetIndex(const struct device *device, unsigned *index)
{
	ENTER(device);
	*index = device->gpu;
	return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(const struct device *device, unsigned *room, struct process *to)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, room, to);
}

struct old_process {
	unsigned pid;
	unsigned long long memory;
};

int nvmlDeviceGetComputeRunningProcesses(const struct device *device, unsigned *room, struct old_process *to)
{
	struct process found[MOST_PROCESSES];
	unsigned had = *room;
	ENTER(device);
	*room = MOST_PROCESSES;
	processes(device, "compute", room, found);
	if (*room > had)
		return INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *room; i++)
		to[i] = (struct old_process){found[i].pid, found[i].memory};
	return SUCCESS;
}

struct old_event {
	struct device *device;
	unsigned long long type, data;
};

int nvmlEventSetWait(struct event_set *set, struct old_event *event, unsigned timeout_ms)
{
	struct event found;
	int code = nvmlEventSetWait_v2(set, &found, timeout_ms);
	if (!code)
		*event = (struct old_event){found.device, found.type, found.data};
	return code;
}

/* Each GPU may read and write the memory of the others. */
int nvmlDeviceGetP2PStatus(const struct device *device, const struct device *peer, int capability, int *status)
{
	ENTER(device);
	(void)peer, (void)capability;
	*status = 0; /* NVML_P2P_STATUS_OK */
	return SUCCESS;
}

/* There is no NVLink. */
int nvmlDeviceGetNvLinkCapability(const struct device *device, unsigned link, int capability, unsigned *has)
{
	ENTER(device);
	(void)link, (void)capability, (void)has;
	return NOT_SUPPORTED;
}

#define NO_LINK(function, ...)                                                                               \
	int function(const struct device *device, unsigned link, __VA_ARGS__)                                \
	{                                                                                                    \
		ENTER(device);                                                                               \
		(void)link, (void)to;                                                                        \
		return NOT_SUPPORTED;                                                                        \
	}
NO_LINK(nvmlDeviceGetNvLinkRemoteDeviceType, int *to)
NO_LINK(nvmlDeviceGetNvLinkRemotePciInfo, struct pci *to)
NO_LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, struct pci *to)
