/* NVIDIA's management library without a GPU: the functions that the exporter calls, with their signatures and the
 * layouts of their structures, answering from a scenario file.
 *
 * ACCEL_NVML_SCENARIO names the file (scenario.h has its form), ACCEL_NVML_CALLS a file that counts calls by function.
 * Without a file there is one H100. Keys:
 *     gpus, driver, nvml, cuda
 *     init=9                 nvmlInit fails with that code
 *     noise=1                nvmlInit writes to standard output
 *     hang=FUNCTION          that call never returns; hang=FUNCTION@3 only about GPU 3. crash=… the same with SIGSEGV
 *     error.FUNCTION=999     that call fails; gpu3.error.FUNCTION=… only about GPU 3. delay.FUNCTION=20 takes 20 ms more
 *     gpu.KEY, gpu3.KEY      of every GPU, of GPU 3: see the defaults below, and
 *     gpu3.lost=1            every call about it fails with GPU_IS_LOST
 *     gpu3.field.82          a field value; .field.138.4 the one of scope 4, .field.138.link that of any one link
 *     gpu3.type.82=u         its type: d double, u 32 bits, ull 64 bits (default), i and ll signed
 *     gpu3.gpm.5             a metric of GPM in percent or its unit
 *     gpu3.process.0=PID KIND BYTES SM MEM     KIND = compute, graphics, mps; SM and MEM percent, optional
 *     gpu3.mig=7             MIG is on, with so many devices; gpu3.mig2.process.0, gpu3.mig2.memory_used, …
 *     event.1=3 8 79         GPU, type of event, data; reported once, when the line appears
 *     softgpu=FOLDER         processes, memory, utilization and Xids are those of the soft GPUs (tests/softgpu/story.h)
 * Calls that answer what field values answer have keys of their own and no defaults: gpu.energy_mj, gpu.pcie_replays,
 * gpu.ecc.TYPE.LIFETIME, gpu.ecc.TYPE.LIFETIME.LOCATION, gpu.violation.POLICY, gpu.link_errors.LINK.COUNTER, …
 */
#define _GNU_SOURCE
#include "scenario.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	TIMEOUT = 10,
	LOST = 15,
	WRONG_VERSION = 25
};
enum { MOST_GPUS = 64, MOST_MIGS = 8, MOST_PROCESSES = 512, NO_INSTANCE = -1 };
#define GIB (1ULL << 30)

static const char DEFAULTS[] =
    "gpus=1\ndriver=580.95.05\nnvml=13.580.95.05\ncuda=13000\n"
    "gpu.name=NVIDIA H100 80GB HBM3\ngpu.brand=14\ngpu.serial=165000000000\ngpu.vbios=96.00.99.00.01\n"
    "gpu.board_part_number=692-2G520-0200-000\ngpu.inforom_image=G520.0200.00.05\ngpu.inforom.0=2.1\n"
    "gpu.inforom.1=7.16\ngpu.compute_capability=900\ngpu.virtualization=0\ngpu.mig_max=7\ngpu.mig_profile=1g."
    "10gb\n"
    "gpu.temperature=41\ngpu.margin=47\ngpu.power_mw=312456\ngpu.utilization=63\ngpu.memory_copy=38\ngpu."
    "encoder=0\n"
    "gpu.decoder=0\ngpu.jpeg=0\ngpu.ofa=0\ngpu.clock.0=1755\ngpu.clock.1=1755\ngpu.clock.2=2619\ngpu.clock.3="
    "1545\n"
    "gpu.clock_max.0=1980\ngpu.clock_max.1=1980\ngpu.clock_max.2=2619\ngpu.clock_max.3=1605\ngpu.reasons="
    "0x4\n"
    "gpu.pstate=0\ngpu.pcie_generation=5\ngpu.pcie_width=16\ngpu.pcie_generation_max=5\ngpu.pcie_width_max="
    "16\n"
    "gpu.memory_total=85520809984\ngpu.memory_used=45097156608\ngpu.memory_reserved=640155648\ngpu.bus_width="
    "5120\n"
    "gpu.bar1_total=137438953472\ngpu.bar1_used=8388608\ngpu.power_limit_mw=700000\ngpu.power_default_mw="
    "700000\n"
    "gpu.threshold.0=92\ngpu.threshold.1=89\ngpu.persistence=1\ngpu.compute_mode=0\n"
    "gpu.rows_max=640\ngpu.rows_high=0\ngpu.rows_partial=0\ngpu.rows_low=0\ngpu.rows_none=0\n"
    "gpu.sram_corrected=0\ngpu.sram_parity=0\ngpu.sram_secded=0\ngpu.sram_threshold=0\n"
    "gpu.fabric_state=3\ngpu.fabric_status=0\ngpu.fabric_health=0x2a\ngpu.link_state=1\ngpu.events=0xff9f\n"
    "gpu.gpm=1\ngpu.mig.memory_total=10468982784\ngpu.mig.memory_used=38273024\ngpu.mig.memory_reserved=0\n"
    "gpu.field.1=1\ngpu.field.2=1\ngpu.field.82=52\ngpu.type.82=u\ngpu.field.83=1000000000+312456\n"
    "gpu.field.185=312000\ngpu.type.185=u\ngpu.field.186=313000\ngpu.type.186=u\ngpu.field.94=0\n"
    "gpu.field.74=0\ngpu.field.75=0\ngpu.field.76=0\ngpu.field.77=0\ngpu.field.78=0\ngpu.field.79=0\n"
    "gpu.field.269=0\ngpu.field.270=0\ngpu.field.271=0\ngpu.field.230=0\ngpu.type.230=u\n"
    "gpu.field.138.4294967295=1000+500000\ngpu.field.139.4294967295=1000+400000\n"
    "gpu.field.138.link=100+25000\ngpu.field.139.link=100+20000\n"
    "gpu.field.3=0\ngpu.field.4=0\ngpu.field.5=0\ngpu.field.6=0\ngpu.field.9=0\ngpu.field.10=0\ngpu.field.11="
    "0\n"
    "gpu.field.12=0\ngpu.field.142=0\ngpu.field.143=0\ngpu.field.144=0\ngpu.field.145=0\n"
    "gpu.field.91=18\ngpu.type.91=u\ngpu.field.187=200000\ngpu.type.187=u\ngpu.field.188=700000\ngpu.type."
    "188=u\n"
    "gpu.field.189=700000\ngpu.type.189=u\ngpu.field.190=700000\ngpu.type.190=u\ngpu.field.192=700000\n"
    "gpu.type.192=u\ngpu.field.193=-8\ngpu.type.193=i\ngpu.field.194=-2\ngpu.type.194=i\ngpu.field.196=0\n"
    "gpu.type.196=i\ngpu.field.161.link=0\ngpu.field.162.link=0\ngpu.field.163.link=0\ngpu.field.164.link="
    "26562\n"
    "gpu.type.164=u\ngpu.field.169=0\ngpu.field.173=0\ngpu.field.174=0\ngpu.field.179=0\ngpu.field.180=0\n"
    "gpu.gpm.1=64.5\ngpu.gpm.2=61.25\ngpu.gpm.3=33.5\ngpu.gpm.4=12.5\ngpu.gpm.5=48.75\ngpu.gpm.6=0.0\n"
    "gpu.gpm.7=48.75\ngpu.gpm.8=0.0\ngpu.gpm.9=0.0\ngpu.gpm.10=37.5\ngpu.gpm.11=0.0\ngpu.gpm.12=6.25\ngpu."
    "gpm.13=1.5\n"
    "gpu.gpm.20=512.0\ngpu.gpm.21=256.0\ngpu.gpm.60=4096.0\ngpu.gpm.61=8192.0\n";

struct device {
	int gpu, mig; /* mig -1: the GPU itself */
};
struct call {
	char function[56];
	uint64_t count;
};
struct gpm_sample {
	int gpu, mig;
	double at;
};
struct event_set {
	uint64_t kinds[MOST_GPUS];
	long reported;
};

static struct device devices[MOST_GPUS][MOST_MIGS + 1];
static int users;
static struct call *counts;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static const char *defaults(void);

static pthread_mutex_t *locked(void)
{
	pthread_mutex_lock(&lock);
	return &lock;
}

static void unlock(pthread_mutex_t *const *held)
{
	pthread_mutex_unlock(*held);
}
#define UNTIL_RETURN __attribute__((cleanup(unlock))) pthread_mutex_t *const

static void count(const char *function)
{
	enum { MOST = 128 };
	const char *path = getenv("ACCEL_NVML_CALLS");
	if (!path)
		return;
	if (!counts) {
		int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
		if (file < 0 || ftruncate(file, MOST * sizeof *counts))
			abort();
		counts = mmap(NULL, MOST * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		close(file);
	}
	for (struct call *call = counts; call < counts + MOST; call++) {
		if (!*call->function)
			snprintf(call->function, sizeof call->function, "%s", function);
		if (!strcmp(call->function, function)) {
			call->count++;
			return;
		}
	}
}

static bool concerns(const char *what, const char *function, int gpu)
{
	const char *named = text_of("%s", what);
	size_t length = strlen(function);
	if (!named || strncmp(named, function, length) || (named[length] && named[length] != '@'))
		return false;
	return !named[length] || atoi(named + length + 1) == gpu;
}

/* The beginning of every call: what the scenario wants of it. Success means: go on. */
static int enter(const char *function, const struct device *device)
{
	int gpu = device ? device->gpu : -1;
	count(function);
	read_scenario(getenv("ACCEL_NVML_SCENARIO"), defaults());
	while (concerns("hang", function, gpu)) {
		count("hang");
		pause();
	}
	if (concerns("crash", function, gpu))
		raise(SIGSEGV);
	const char *delay = text_of("delay.%s", function), *error = text_of("error.%s", function);
	if (delay)
		usleep(atoi(delay) * 1000);
	if (error)
		return atoi(error);
	if (!device)
		return SUCCESS;
	if (!users)
		return UNINITIALIZED;
	if (text_of("gpu%d.lost", gpu))
		return LOST;
	error = text_of("gpu%d.error.%s", gpu, function);
	return error ? atoi(error) : SUCCESS;
}
#define ENTER(device)                                                                                        \
	UNTIL_RETURN entered_lock = locked();                                                                \
	int entered = enter(__func__, device);                                                               \
	if (entered)                                                                                         \
	return entered

/* The value of a device's key: its own, or that of every GPU (of every MIG device). */
static const char *text(const struct device *device, const char *key)
{
	const char *found;
	if (device->mig < 0)
		return (found = text_of("gpu%d.%s", device->gpu, key)) ? found : text_of("gpu.%s", key);
	if ((found = text_of("gpu%d.mig%d.%s", device->gpu, device->mig, key)))
		return found;
	return text_of("gpu.mig.%s", key);
}

static int number(const struct device *device, const char *key, uint64_t *value)
{
	double real;
	const char *found = text(device, key);
	if (!found)
		return NOT_SUPPORTED;
	return number_of(found, value, &real) == FAILURE ? (int)*value : SUCCESS;
}

static int narrow(const struct device *device, const char *key, unsigned *value)
{
	uint64_t wide = 0;
	int code = number(device, key, &wide);
	if (!code)
		*value = (unsigned)wide;
	return code;
}

static int indexed(const struct device *device, const char *key, unsigned index, unsigned *value)
{
	char full[LONGEST_KEY];
	snprintf(full, sizeof full, "%s.%u", key, index);
	return narrow(device, full, value);
}

static int written(const char *found, char *to, unsigned size)
{
	if (!found)
		return NOT_SUPPORTED;
	return (unsigned)snprintf(to, size, "%s", found) < size ? SUCCESS : INSUFFICIENT_SIZE;
}

static int gpu_count(void)
{
	const char *found = text_of("gpus");
	int gpus = found ? atoi(found) : 0;
	return gpus < MOST_GPUS ? gpus : MOST_GPUS;
}

static int mig_count(int gpu)
{
	struct device device = {gpu, -1};
	unsigned migs = 0;
	return narrow(&device, "mig", &migs) || migs > MOST_MIGS ? 0 : (int)migs;
}

static struct device *device_at(int gpu, int mig)
{
	struct device *device = &devices[gpu][mig + 1];
	device->gpu = gpu;
	device->mig = mig;
	return device;
}

/* --- the library and its devices --- */

int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	ENTER(NULL);
	const char *code = text_of("init");
	if (code && atoi(code))
		return atoi(code);
	if (text_of("noise"))
		if (write(1, "{}\nnoise\n", 9) != 9)
			return UNINITIALIZED;
	users++;
	return SUCCESS;
}

int nvmlShutdown(void)
{
	ENTER(NULL);
	if (!users)
		return UNINITIALIZED;
	users--;
	return SUCCESS;
}

const char *nvmlErrorString(int code)
{
	static char described[32];
	snprintf(described, sizeof described, "stand-in error %d", code);
	return described;
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
	ENTER(NULL);
	return written(text_of("driver"), version, size);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
	ENTER(NULL);
	return written(text_of("nvml"), version, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	ENTER(NULL);
	const char *found = text_of("cuda");
	*version = found ? atoi(found) : 0;
	return found ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned *number)
{
	ENTER(NULL);
	*number = gpu_count();
	return users ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
	UNTIL_RETURN held = locked();
	if ((int)index >= gpu_count())
		return INVALID_ARGUMENT;
	*device = device_at(index, -1);
	ENTER(*device);
	return SUCCESS;
}

static void uuid_of(const struct device *device, char *uuid, size_t size)
{
	const char *given = text_of("gpu%d.uuid", device->gpu);
	if (device->mig >= 0)
		snprintf(uuid, size, "MIG-00000000-0000-0000-%04d-%012d", device->gpu, device->mig);
	else if (given)
		snprintf(uuid, size, "%s", given);
	else
		snprintf(uuid, size, GPU_UUID, device->gpu);
}

int nvmlDeviceGetUUID(const struct device *device, char *uuid, unsigned size)
{
	ENTER(device);
	uuid_of(device, uuid, size);
	return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
	UNTIL_RETURN held = locked();
	read_scenario(getenv("ACCEL_NVML_SCENARIO"), defaults());
	for (int gpu = 0; gpu < gpu_count(); gpu++) {
		char known[80];
		uuid_of(*device = device_at(gpu, -1), known, sizeof known);
		if (!strcmp(known, uuid)) {
			ENTER(*device);
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

int nvmlDeviceGetName(const struct device *device, char *name, unsigned size)
{
	ENTER(device);
	struct device gpu = {device->gpu, -1};
	if (device->mig < 0)
		return written(text(device, "name"), name, size);
	snprintf(name, size, "%s MIG %s", text(&gpu, "name"), text(&gpu, "mig_profile"));
	return SUCCESS;
}

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};
_Static_assert(sizeof(struct pci) == 68, "nvmlPciInfo_t");

int nvmlDeviceGetPciInfo_v3(const struct device *device, struct pci *pci)
{
	ENTER(device);
	*pci = (struct pci){.bus = FIRST_BUS + device->gpu, .id = 0x233010de, .subsystem = 0x16c110de};
	snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
		 pci->device & 0xff);
	return SUCCESS;
}

int nvmlDeviceGetMinorNumber(const struct device *device, unsigned *minor)
{
	ENTER(device);
	*minor = device->gpu;
	return SUCCESS;
}

#define TEXT(function, key)                                                                                  \
	int function(const struct device *device, char *to, unsigned size)                                   \
	{                                                                                                    \
		ENTER(device);                                                                               \
		return written(text(device, key), to, size);                                                 \
	}
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image")

int nvmlDeviceGetInforomVersion(const struct device *device, unsigned object, char *to, unsigned size)
{
	ENTER(device);
	char key[16];
	snprintf(key, sizeof key, "inforom.%u", object);
	return written(text(device, key), to, size);
}

int nvmlDeviceGetCudaComputeCapability(const struct device *device, int *major, int *minor)
{
	ENTER(device);
	unsigned both = 0;
	int code = narrow(device, "compute_capability", &both);
	*major = both / 100;
	*minor = both % 100 / 10;
	return code;
}

/* --- one number about a device --- */

#define NUMBER_(function, key)                                                                               \
	int function(const struct device *device, unsigned *value)                                           \
	{                                                                                                    \
		ENTER(device);                                                                               \
		return narrow(device, key, value);                                                           \
	}
#define NUMBER_OF(function, key)                                                                             \
	int function(const struct device *device, unsigned index, unsigned *value)                           \
	{                                                                                                    \
		ENTER(device);                                                                               \
		return indexed(device, key, index, value);                                                   \
	}
#define NUMBER_AND_PERIOD(function, key)                                                                     \
	int function(const struct device *device, unsigned *value, unsigned *period)                         \
	{                                                                                                    \
		ENTER(device);                                                                               \
		*period = 1000000;                                                                           \
		return narrow(device, key, value);                                                           \
	}
#define WIDE(function, key)                                                                                  \
	int function(const struct device *device, unsigned long long *value)                                 \
	{                                                                                                    \
		ENTER(device);                                                                               \
		uint64_t wide = 0;                                                                           \
		int code = number(device, key, &wide);                                                       \
		*value = wide;                                                                               \
		return code;                                                                                 \
	}
NUMBER_(nvmlDeviceGetBrand, "brand")
NUMBER_(nvmlDeviceGetVirtualizationMode, "virtualization")
NUMBER_(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER_(nvmlDeviceGetPerformanceState, "pstate")
NUMBER_(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER_(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER_(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER_(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER_(nvmlDeviceGetMemoryBusWidth, "bus_width")
NUMBER_(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER_(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw")
NUMBER_(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER_(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER_(nvmlDeviceGetFanSpeed, "fan")
NUMBER_OF(nvmlDeviceGetClockInfo, "clock")
NUMBER_OF(nvmlDeviceGetMaxClockInfo, "clock_max")
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, "threshold")
NUMBER_OF(nvmlDeviceGetPcieThroughput, "pcie_throughput")
NUMBER_AND_PERIOD(nvmlDeviceGetEncoderUtilization, "encoder")
NUMBER_AND_PERIOD(nvmlDeviceGetDecoderUtilization, "decoder")
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, "reasons")
WIDE(nvmlDeviceGetSupportedEventTypes, "events")

int nvmlDeviceGetTemperature(const struct device *device, unsigned sensor, unsigned *value)
{
	ENTER(device);
	return sensor ? INVALID_ARGUMENT : narrow(device, "temperature", value);
}

int nvmlDeviceGetNvLinkState(const struct device *device, unsigned link, unsigned *active)
{
	ENTER(device);
	return indexed(device, "link_state", link, active) ? narrow(device, "link_state", active) : SUCCESS;
}

struct utilization {
	unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(const struct device *device, struct utilization *rates)
{
	ENTER(device);
	int code = narrow(device, "utilization", &rates->gpu);
	return code ? code : narrow(device, "memory_copy", &rates->memory);
}

struct memory {
	unsigned long long total, free, used;
};
struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};
struct bar1 {
	unsigned long long total, free, used;
};
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");

static int memory(const struct device *device, struct memory_v2 *memory)
{
	uint64_t total = 0, reserved = 0, used = 0;
	int code = number(device, "memory_total", &total);
	if (code || (code = number(device, "memory_used", &used)) ||
	    (code = number(device, "memory_reserved", &reserved)))
		return code;
	memory->total = total;
	memory->used = used;
	memory->reserved = reserved;
	memory->free = total - used - reserved;
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(const struct device *device, struct memory *info)
{
	ENTER(device);
	struct memory_v2 known = {0};
	int code = memory(device, &known);
	*info = (struct memory){known.total, known.free, known.used + known.reserved};
	return code;
}

int nvmlDeviceGetBAR1MemoryInfo(const struct device *device, struct bar1 *info)
{
	ENTER(device);
	uint64_t total = 0, used = 0;
	int code = number(device, "bar1_total", &total);
	if (!code)
		code = number(device, "bar1_used", &used);
	*info = (struct bar1){total, total - used, used};
	return code;
}

/* --- field values --- */

struct field_value {
	unsigned id, scope;
	long long timestamp, latency;
	unsigned type;
	int code;
	union {
		double real;
		unsigned narrow;
		unsigned long long wide;
		long long signed_wide;
		int signed_narrow;
	} value;
};
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");
enum { DOUBLE = 0, UNSIGNED = 1, WIDE_UNSIGNED = 3, WIDE_SIGNED = 4, SIGNED = 5 };

static void answer(const struct device *device, struct field_value *field)
{
	char key[LONGEST_KEY];
	snprintf(key, sizeof key, "field.%u.%u", field->id, field->scope);
	const char *found = text(device, key);
	if (!found) {
		snprintf(key, sizeof key, "field.%u.link", field->id);
		found = text(device, key);
		if (!found) {
			snprintf(key, sizeof key, "field.%u", field->id);
			found = field->scope ? NULL : text(device, key);
		}
	}
	field->code = NOT_SUPPORTED;
	if (!found)
		return;
	uint64_t integer = 0;
	double real = 0;
	if (number_of(found, &integer, &real) == FAILURE) {
		field->code = (int)integer;
		return;
	}
	snprintf(key, sizeof key, "type.%u", field->id);
	const char *type = text(device, key);
	type = type ? type : "ull";
	field->code = SUCCESS;
	field->value.wide = integer;
	if (!strcmp(type, "d")) {
		field->type = DOUBLE;
		field->value.real = real;
	} else if (!strcmp(type, "u")) {
		field->type = UNSIGNED;
		field->value.wide = 0;
		field->value.narrow = (unsigned)integer;
	} else if (!strcmp(type, "i")) {
		field->type = SIGNED;
		field->value.signed_narrow = (int)integer;
	} else {
		field->type = !strcmp(type, "ll") ? WIDE_SIGNED : WIDE_UNSIGNED;
	}
}

int nvmlDeviceGetFieldValues(const struct device *device, int number_of_values, struct field_value *values)
{
	ENTER(device);
	for (int i = 0; i < number_of_values; i++)
		answer(device, &values[i]);
	return SUCCESS;
}

/* --- calls that answer what field values answer --- */

WIDE(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
NUMBER_(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER_(nvmlDeviceGetPowerManagementLimit, "power_requested_mw")
NUMBER_(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")

static int pair(const struct device *device, const char *first, unsigned *to, const char *second,
		unsigned *other)
{
	int code = narrow(device, first, to);
	return code ? code : narrow(device, second, other);
}

int nvmlDeviceGetPowerManagementLimitConstraints(const struct device *device, unsigned *least, unsigned *most)
{
	ENTER(device);
	return pair(device, "power_min_mw", least, "power_max_mw", most);
}

int nvmlDeviceGetEccMode(const struct device *device, unsigned *current, unsigned *pending)
{
	ENTER(device);
	return pair(device, "ecc_mode", current, "ecc_pending", pending);
}

int nvmlDeviceGetRemappedRows(const struct device *device, unsigned *correctable, unsigned *uncorrectable,
			      unsigned *pending, unsigned *failure)
{
	ENTER(device);
	int code = pair(device, "remapped_correctable", correctable, "remapped_uncorrectable", uncorrectable);
	return code ? code : pair(device, "remapped_pending", pending, "remapped_failure", failure);
}

static int counted(const struct device *device, const char *key, unsigned long long *value)
{
	uint64_t found = 0;
	int code = number(device, key, &found);
	*value = found;
	return code;
}

int nvmlDeviceGetTotalEccErrors(const struct device *device, unsigned type, unsigned lifetime,
				unsigned long long *value)
{
	ENTER(device);
	char key[LONGEST_KEY];
	snprintf(key, sizeof key, "ecc.%u.%u", type, lifetime);
	return counted(device, key, value);
}

int nvmlDeviceGetMemoryErrorCounter(const struct device *device, unsigned type, unsigned lifetime,
				    unsigned location, unsigned long long *value)
{
	ENTER(device);
	char key[LONGEST_KEY];
	snprintf(key, sizeof key, "ecc.%u.%u.%u", type, lifetime, location);
	return counted(device, key, value);
}

int nvmlDeviceGetNvLinkErrorCounter(const struct device *device, unsigned link, unsigned counter,
				    unsigned long long *value)
{
	ENTER(device);
	char key[LONGEST_KEY];
	snprintf(key, sizeof key, "link_errors.%u.%u", link, counter);
	return counted(device, key, value);
}

struct violation {
	unsigned long long at, lasted;
};

int nvmlDeviceGetViolationStatus(const struct device *device, unsigned policy, struct violation *violation)
{
	ENTER(device);
	char key[LONGEST_KEY];
	snprintf(key, sizeof key, "violation.%u", policy);
	violation->at = (unsigned long long)time(NULL) * 1000000;
	return counted(device, key, &violation->lasted);
}

int nvmlDeviceGetRetiredPages(const struct device *device, unsigned cause, unsigned *room,
			      unsigned long long *addresses)
{
	ENTER(device);
	unsigned pages = 0;
	int code = indexed(device, "retired", cause, &pages);
	if (code)
		return code;
	unsigned had = *room;
	*room = pages;
	if (!addresses || had < pages)
		return pages ? INSUFFICIENT_SIZE : SUCCESS;
	for (unsigned i = 0; i < pages; i++)
		addresses[i] = 0x1000ULL * (i + 1);
	return SUCCESS;
}

/* --- structures with their version --- */

#define VERSION(type, number) (sizeof(type) | (number) << 24)

struct sram {
	unsigned version;
	unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected;
	unsigned long long volatile_parity, volatile_secded, volatile_corrected;
	unsigned long long l2, sm, pcie, mcu, other;
	unsigned threshold;
};
_Static_assert(VERSION(struct sram, 1) == 0x1000068, "nvmlEccSramErrorStatus_v1_t");

int nvmlDeviceGetSramEccErrorStatus(const struct device *device, struct sram *status)
{
	ENTER(device);
	if (status->version != VERSION(struct sram, 1))
		return WRONG_VERSION;
	uint64_t corrected = 0, parity = 0, secded = 0, threshold = 0;
	int code = number(device, "sram_corrected", &corrected);
	if (code)
		return code;
	number(device, "sram_parity", &parity);
	number(device, "sram_secded", &secded);
	number(device, "sram_threshold", &threshold);
	status->aggregate_corrected = status->volatile_corrected = corrected;
	status->aggregate_parity = status->volatile_parity = parity;
	status->aggregate_secded = status->volatile_secded = secded;
	status->l2 = parity;
	status->sm = secded;
	status->threshold = (unsigned)threshold;
	return SUCCESS;
}

struct fabric {
	unsigned version;
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
};
_Static_assert(VERSION(struct fabric, 2) == 0x2000024, "nvmlGpuFabricInfo_v2_t");

int nvmlDeviceGetGpuFabricInfoV(const struct device *device, struct fabric *fabric)
{
	ENTER(device);
	if (fabric->version != VERSION(struct fabric, 2))
		return WRONG_VERSION;
	unsigned state = 0, status = 0, cluster = 0;
	int code = narrow(device, "fabric_state", &state);
	if (code)
		return code;
	narrow(device, "fabric_status", &status);
	narrow(device, "fabric_health", &fabric->health);
	narrow(device, "fabric_clique", &fabric->clique);
	narrow(device, "fabric_cluster", &cluster);
	fabric->cluster[15] = (unsigned char)cluster;
	fabric->state = (unsigned char)state;
	fabric->status = (int)status;
	return SUCCESS;
}

struct rows {
	unsigned max, high, partial, low, none;
};

int nvmlDeviceGetRowRemapperHistogram(const struct device *device, struct rows *rows)
{
	ENTER(device);
	int code = narrow(device, "rows_max", &rows->max);
	if (code || device->mig >= 0 || mig_count(device->gpu))
		return code ? code : NOT_SUPPORTED;
	narrow(device, "rows_high", &rows->high);
	narrow(device, "rows_partial", &rows->partial);
	narrow(device, "rows_low", &rows->low);
	narrow(device, "rows_none", &rows->none);
	return SUCCESS;
}

struct licensable {
	unsigned code, state;
	char license[128], product[128];
	unsigned enabled;
	unsigned year;
	unsigned short month, day, hour, minute, second;
	unsigned char status;
};
struct licenses {
	int supported;
	unsigned count;
	struct licensable features[3];
};
_Static_assert(sizeof(struct licenses) == 8 + 3 * 284, "nvmlGridLicensableFeatures_t");

int nvmlDeviceGetGridLicensableFeatures_v4(const struct device *device, struct licenses *licenses)
{
	ENTER(device);
	unsigned licensed = 0;
	int code = narrow(device, "vgpu_licensed", &licensed);
	if (code)
		return code;
	licenses->supported = 1;
	licenses->count = 1;
	licenses->features[0].code = 1;
	licenses->features[0].state = licensed;
	return SUCCESS;
}

int nvmlDeviceGetActiveVgpus(const struct device *device, unsigned *number, unsigned *instances)
{
	ENTER(device);
	unsigned active = 0;
	int code = narrow(device, "vgpus", &active);
	if (code)
		return code;
	if (*number < active) {
		*number = active;
		return INSUFFICIENT_SIZE;
	}
	*number = active;
	for (unsigned i = 0; i < active; i++)
		instances[i] = 3251634200 + i;
	return SUCCESS;
}

/* --- MIG --- */

int nvmlDeviceGetMigMode(const struct device *device, unsigned *current, unsigned *pending)
{
	ENTER(device);
	const char *migs = text(device, "mig");
	*current = *pending = migs && strcmp(migs, "0");
	return text(device, "mig_max") ? SUCCESS : NOT_SUPPORTED;
}

NUMBER_(nvmlDeviceGetMaxMigDeviceCount, "mig_max")

int nvmlDeviceGetMigDeviceHandleByIndex(const struct device *device, unsigned index, struct device **mig)
{
	ENTER(device);
	if ((int)index >= mig_count(device->gpu))
		return NOT_FOUND;
	*mig = device_at(device->gpu, index);
	return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(const struct device *device, unsigned *id)
{
	ENTER(device);
	*id = device->mig + 7;
	return device->mig < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(const struct device *device, unsigned *id)
{
	ENTER(device);
	*id = 0;
	return device->mig < 0 ? NOT_SUPPORTED : SUCCESS;
}

/* --- processes --- */

struct process {
	unsigned pid;
	unsigned long long memory;
	unsigned gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_t");

static int processes(const struct device *device, const char *kind, unsigned *room, struct process *to)
{
	unsigned found = 0;
	for (int i = 0; i < MOST_PROCESSES; i++) {
		char key[32], its[32], bytes[32];
		unsigned pid;
		snprintf(key, sizeof key, "process.%d", i);
		const char *line = text(device, key);
		if (!line)
			break;
		if (sscanf(line, "%u %31s %31s", &pid, its, bytes) != 3 || !strstr(its, kind))
			continue;
		uint64_t memory = 0;
		double real;
		number_of(bytes, &memory, &real);
		if (to && found < *room)
			to[found] = (struct process){
			    pid,
			    memory,
			    device->mig < 0 ? (unsigned)NO_INSTANCE : (unsigned)device->mig + 7,
			    device->mig < 0 ? (unsigned)NO_INSTANCE : 0,
			};
		found++;
	}
	int code = found > *room ? INSUFFICIENT_SIZE : SUCCESS;
	*room = found;
	return code;
}

#define PROCESSES(function, kind)                                                                            \
	int function(const struct device *device, unsigned *room, struct process *to)                        \
	{                                                                                                    \
		ENTER(device);                                                                               \
		return processes(device, kind, room, to);                                                    \
	}
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

struct use {
	unsigned long long at;
	unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};
struct uses {
	unsigned version, room;
	unsigned long long since;
	struct use *to;
};
struct old_use {
	unsigned pid;
	unsigned long long at;
	unsigned sm, memory, encoder, decoder;
};
_Static_assert(sizeof(struct use) == 40 && sizeof(struct uses) == 24 && sizeof(struct old_use) == 32,
	       "utilization");

static unsigned uses(const struct device *device, struct use *to, unsigned room)
{
	unsigned found = 0;
	for (int i = 0; i < MOST_PROCESSES; i++) {
		struct use use = {.at = (unsigned long long)time(NULL) * 1000000};
		char key[32];
		snprintf(key, sizeof key, "process.%d", i);
		const char *line = text(device, key);
		if (!line)
			break;
		if (sscanf(line, "%u %*s %*s %u %u", &use.pid, &use.sm, &use.memory) != 3)
			continue;
		if (found < room)
			to[found] = use;
		found++;
	}
	return found;
}

/* --- events --- */

static long newest_event(void)
{
	long newest = 0;
	for (int i = 0; i < line_count; i++)
		if (!strncmp(lines[i].key, "event.", 6) && atol(lines[i].key + 6) > newest)
			newest = atol(lines[i].key + 6);
	return newest;
}

int nvmlEventSetCreate(struct event_set **set)
{
	ENTER(NULL);
	*set = calloc(1, sizeof **set);
	(*set)->reported = newest_event();
	return SUCCESS;
}

int nvmlEventSetFree(struct event_set *set)
{
	ENTER(NULL);
	free(set);
	return SUCCESS;
}

int nvmlDeviceRegisterEvents(const struct device *device, unsigned long long kinds, struct event_set *set)
{
	ENTER(device);
	uint64_t supported = 0;
	number(device, "events", &supported);
	if (kinds & ~supported)
		return NOT_SUPPORTED;
	set->kinds[device->gpu] |= kinds;
	return SUCCESS;
}

struct event {
	struct device *device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct event) == 32, "nvmlEventData_t");

static int next_event(struct event_set *set, struct event *event)
{
	UNTIL_RETURN held = locked();
	read_scenario(getenv("ACCEL_NVML_SCENARIO"), defaults());
	while (set->reported < newest_event()) {
		const char *line = text_of("event.%ld", ++set->reported);
		unsigned gpu;
		*event = (struct event){.gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
		if (!line ||
		    sscanf(line, "%u %lli %lli", &gpu, (long long *)&event->type, (long long *)&event->data) != 3)
			continue;
		if (gpu >= MOST_GPUS || !(set->kinds[gpu] & event->type))
			continue;
		event->device = device_at(gpu, -1);
		return SUCCESS;
	}
	return TIMEOUT;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned timeout_ms)
{
	{
		ENTER(NULL);
	}
	for (double until = seconds() + timeout_ms * 1e-3;; usleep(100000)) {
		int code = next_event(set, event);
		if (code != TIMEOUT || seconds() >= until)
			return code;
	}
}

#ifndef OLD_DRIVER /* what drivers from before Hopper do not have */

struct temperature {
	unsigned version, sensor;
	int temperature;
};
struct margin {
	unsigned version;
	int margin;
};
_Static_assert(VERSION(struct temperature, 1) == 0x100000c && VERSION(struct margin, 1) == 0x1000008,
	       "temperatures");

int nvmlDeviceGetTemperatureV(const struct device *device, struct temperature *temperature)
{
	ENTER(device);
	if (temperature->version != VERSION(struct temperature, 1))
		return WRONG_VERSION;
	return temperature->sensor ? INVALID_ARGUMENT
				   : narrow(device, "temperature", (unsigned *)&temperature->temperature);
}

int nvmlDeviceGetMarginTemperature(const struct device *device, struct margin *margin)
{
	ENTER(device);
	if (margin->version != VERSION(struct margin, 1))
		return WRONG_VERSION;
	return narrow(device, "margin", (unsigned *)&margin->margin);
}

int nvmlDeviceGetMemoryInfo_v2(const struct device *device, struct memory_v2 *info)
{
	ENTER(device);
	if (info->version != VERSION(struct memory_v2, 2))
		return WRONG_VERSION;
	return memory(device, info);
}

NUMBER_AND_PERIOD(nvmlDeviceGetJpgUtilization, "jpeg")
NUMBER_AND_PERIOD(nvmlDeviceGetOfaUtilization, "ofa")
WIDE(nvmlDeviceGetCurrentClocksEventReasons, "reasons")

int nvmlDeviceGetProcessesUtilizationInfo(const struct device *device, struct uses *list)
{
	ENTER(device);
	if (list->version != VERSION(struct uses, 1))
		return WRONG_VERSION;
	unsigned room = list->room, found = uses(device, list->to, list->to ? room : 0);
	list->room = found;
	if (!found)
		return NOT_FOUND;
	return list->to && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

struct gpm_support {
	unsigned version, supported;
};
struct gpm_metric {
	unsigned id;
	int code;
	double value;
	const char *short_name, *long_name, *unit;
};
struct gpm_question {
	unsigned version, count;
	struct gpm_sample *before, *after;
	struct gpm_metric metrics[477];
};
_Static_assert(sizeof(struct gpm_metric) == 40 && sizeof(struct gpm_question) == 19104,
	       "nvmlGpmMetricsGet_t");

int nvmlGpmQueryDeviceSupport(const struct device *device, struct gpm_support *support)
{
	ENTER(device);
	support->supported = 0;
	narrow(device, "gpm", &support->supported);
	return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
	ENTER(NULL);
	*sample = calloc(1, sizeof **sample);
	return SUCCESS;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
	ENTER(NULL);
	free(sample);
	return SUCCESS;
}

int nvmlGpmSampleGet(const struct device *device, struct gpm_sample *sample)
{
	ENTER(device);
	*sample = (struct gpm_sample){device->gpu, -1, seconds()};
	return SUCCESS;
}

int nvmlGpmMigSampleGet(const struct device *device, unsigned instance, struct gpm_sample *sample)
{
	ENTER(device);
	if (instance < 7 || (int)instance - 7 >= mig_count(device->gpu))
		return INVALID_ARGUMENT;
	*sample = (struct gpm_sample){device->gpu, (int)instance - 7, seconds()};
	return SUCCESS;
}

int nvmlGpmMetricsGet(struct gpm_question *question)
{
	ENTER(NULL);
	const struct gpm_sample *before = question->before, *after = question->after;
	if (question->version != 1)
		return WRONG_VERSION;
	if (before->gpu != after->gpu || before->mig != after->mig || after->at - before->at < 0.1)
		return INVALID_ARGUMENT;
	for (unsigned i = 0; i < question->count; i++) {
		struct gpm_metric *metric = &question->metrics[i];
		struct device gpu = {before->gpu, -1}, mig = {before->gpu, before->mig};
		char key[16];
		snprintf(key, sizeof key, "gpm.%u", metric->id);
		const char *found = before->mig < 0 ? NULL : text(&mig, key);
		found = found ? found : text(&gpu, key);
		uint64_t integer = 0;
		metric->code = found ? SUCCESS : NOT_SUPPORTED;
		if (found && number_of(found, &integer, &metric->value) == FAILURE)
			metric->code = (int)integer;
	}
	return SUCCESS;
}

#endif

int nvmlDeviceGetProcessUtilization(const struct device *device, struct old_use *to, unsigned *room,
				    unsigned long long since)
{
	ENTER(device);
	(void)since;
	struct use found[MOST_PROCESSES];
	unsigned number = uses(device, found, MOST_PROCESSES);
	if (!number)
		return NOT_FOUND;
	if (!to || *room < number) {
		*room = number;
		return INSUFFICIENT_SIZE;
	}
	*room = number;
	for (unsigned i = 0; i < number; i++)
		to[i] = (struct old_use){found[i].pid, found[i].at, found[i].sm, found[i].memory, 0, 0};
	return SUCCESS;
}

/* The sizes of our structures, by nvidia-ml-py's names for them. */
size_t standin_size(const char *structure)
{
	static const struct {
		const char *name;
		size_t size;
	} known[] = {
	    {"nvmlPciInfo_t", sizeof(struct pci)},
	    {"c_nvmlUtilization_t", sizeof(struct utilization)},
	    {"c_nvmlMemory_t", sizeof(struct memory)},
	    {"c_nvmlMemory_v2_t", sizeof(struct memory_v2)},
	    {"c_nvmlBAR1Memory_t", sizeof(struct bar1)},
	    {"c_nvmlFieldValue_t", sizeof(struct field_value)},
	    {"c_nvmlEccSramErrorStatus_v1_t", sizeof(struct sram)},
	    {"c_nvmlGpuFabricInfo_v2_t", sizeof(struct fabric)},
	    {"c_nvmlRowRemapperHistogramValues", sizeof(struct rows)},
	    {"c_nvmlGridLicensableFeatures_v4_t", sizeof(struct licenses)},
	    {"c_nvmlViolationTime_t", sizeof(struct violation)},
	    {"c_nvmlProcessInfo_v3_t", sizeof(struct process)},
	    {"c_nvmlProcessUtilizationInfo_v1_t", sizeof(struct use)},
	    {"c_nvmlProcessesUtilizationInfo_v1_t", sizeof(struct uses)},
	    {"c_nvmlProcessUtilizationSample_t", sizeof(struct old_use)},
	    {"c_nvmlEventData_t", sizeof(struct event)},
#ifndef OLD_DRIVER
	    {"c_nvmlTemperature_v1_t", sizeof(struct temperature)},
	    {"c_nvmlMarginTemperature_v1_t", sizeof(struct margin)},
	    {"c_nvmlGpmSupport_t", sizeof(struct gpm_support)},
	    {"c_nvmlGpmMetricsGet_t", sizeof(struct gpm_question)},
#endif
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, structure))
			return known[i].size;
	return 0;
}

#ifndef SOFT_GPUS_ONLY /* tests/softgpu/nvml/nvml.c */
static const char *defaults(void)
{
	return DEFAULTS;
}
#endif
