/* SPDX-License-Identifier: Apache-2.0 */
/* What code by nvcc registers at its start: kernels and variables, by their addresses on the host. A module is loaded,
 * and a function looked up, at the first launch on a device. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "soft.h"

#define DEVICES 16
#define BUCKETS 65536

struct binary {
	const void *image;
	CUmodule modules[DEVICES];
};
struct entry { /* a kernel or a variable */
	const void *host;
	const char *name;
	struct binary *binary;
	CUfunction functions[DEVICES];
	void *variable; /* its memory; that of modules is no allocation */
	size_t bytes;
	struct entry *next;
};
static struct entry *entries[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct entry **bucket(const void *host)
{
	return &entries[((uintptr_t)host >> 4) % BUCKETS];
}

static struct entry *entry_of(const void *host)
{
	struct entry *it = __atomic_load_n(bucket(host), __ATOMIC_ACQUIRE);

	while (it && it->host != host) /* entries stay as they are */
		it = it->next;
	return it;
}

static void add(struct binary *binary, const void *host, const char *name, size_t bytes)
{
	struct entry *it = calloc(1, sizeof(*it));

	*it = (struct entry){.host = host, .name = name, .binary = binary, .bytes = bytes};
	pthread_mutex_lock(&lock);
	it->next = *bucket(host);
	__atomic_store_n(bucket(host), it, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

API void **__cudaRegisterFatBinary(void *image)
{
	struct binary *it = calloc(1, sizeof(*it));

	it->image = image;
	return (void **)it;
}

API void __cudaRegisterFatBinaryEnd(void **binary)
{
	(void)binary;
}

API void __cudaUnregisterFatBinary(void **binary)
{
	(void)binary;
}

API char __cudaInitModule(void **binary)
{
	(void)binary;
	return 1;
}

API void __cudaRegisterFunction(void **binary, const char *host, char *on_device, const char *name, int limit, void *a,
				void *b, void *c, void *d, int *e)
{
	(void)on_device, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
	add((struct binary *)binary, host, name, 0);
}

API void __cudaRegisterVar(void **binary, char *host, char *address, const char *name, int external, size_t bytes,
			   int constant, int global)
{
	(void)address, (void)external, (void)constant, (void)global;
	add((struct binary *)binary, host, name, bytes);
}

static CUfunction look_up(struct entry *it, int device)
{
	CUfunction found;

	pthread_mutex_lock(&lock);
	if (!it->binary->modules[device])
		D(cuModuleLoadData)(&it->binary->modules[device], it->binary->image);
	if (!it->functions[device]) {
		D(cuModuleGetFunction)(&found, it->binary->modules[device], it->name);
		__atomic_store_n(&it->functions[device], found, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return it->functions[device];
}

CUfunction function_of(const void *host)
{
	struct entry *it = entry_of(host);
	int device = chosen_device();
	CUfunction found;

	if (bind_thread() || !it || it->bytes || device >= DEVICES)
		return NULL;
	found = __atomic_load_n(&it->functions[device], __ATOMIC_ACQUIRE);
	return found ? found : look_up(it, device);
}

API cudaError_t cudaGetFuncBySymbol(CUfunction *function, const void *kernel)
{
	COUNT;
	*function = function_of(kernel);
	return COUNTED(kept(bind_thread() ?: (*function ? SUCCESS : INVALID_VALUE)));
}

/* What cudaLaunch keeps of <<<>>> until the kernel's stub fetches it. */
static __thread struct {
	dim3 grid, block;
	size_t shared;
	void *stream;
} pushed;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
	pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
	return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
	*grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
	return 0;
}

API cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
	COUNT;
	return CALL(cuLaunchKernel, function_of(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream,
		    arguments, NULL);
}

/* Since CUDA 13 a kernel's stub keeps a handle; here the handle is the kernel's address. */
API cudaError_t __cudaGetKernel(const void **handle, const void *kernel)
{
	*handle = kernel;
	return 0;
}

#if defined(__x86_64__)
/* NVIDIA's is this jump: a probe on both counts a launch twice. */
__asm__(".globl __cudaLaunchKernel\n"
	".type __cudaLaunchKernel, @function\n"
	"__cudaLaunchKernel: jmp cudaLaunchKernel@PLT\n"
	".size __cudaLaunchKernel, .-__cudaLaunchKernel\n");
#elif defined(__aarch64__)
__asm__(".globl __cudaLaunchKernel\n"
	".type __cudaLaunchKernel, %function\n"
	"__cudaLaunchKernel: b cudaLaunchKernel\n"
	".size __cudaLaunchKernel, .-__cudaLaunchKernel\n");
#endif

CUlaunch launch_of(const struct launch *it)
{
	return (CUlaunch){{it->grid.x, it->grid.y, it->grid.z}, {it->block.x, it->block.y, it->block.z}, it->shared,
			  it->stream, it->attributes, it->count};
}

API cudaError_t cudaLaunchKernelExC(const struct launch *it, const void *kernel, void **arguments)
{
	COUNT;
	CUlaunch launch = launch_of(it);

	return CALL(cuLaunchKernelEx, &launch, function_of(kernel), arguments, NULL);
}

API cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
					    CUstream stream)
{
	COUNT;
	return CALL(cuLaunchCooperativeKernel, function_of(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
		    stream, arguments);
}

API cudaError_t cudaFuncGetAttributes(void *to, const void *kernel)
{
	COUNT;
	struct {
		size_t shared, constant, local;
		int threads, registers, ptx, binary, cache, dynamic_shared, carveout;
	} found;
	CUfunction function = function_of(kernel);
	int values[10] = {0};

	if (!function)
		return COUNTED(kept(bind_thread() ?: INVALID_VALUE));
	for (int i = 0; i < 10; i++)
		D(cuFuncGetAttribute)(&values[i], i, function);
	found.shared = values[1], found.constant = values[2], found.local = values[3], found.threads = values[0];
	memcpy(&found.registers, &values[4], 6 * sizeof(int));
	memcpy(to, &found, offsetof(__typeof__(found), carveout) + sizeof(int));
	return COUNTED(SUCCESS);
}

API cudaError_t cudaFuncSetAttribute(const void *kernel, int attribute, int value)
{
	COUNT;
	return CALL(cuFuncSetAttribute, function_of(kernel), attribute, value);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads,
								       size_t shared, unsigned flags)
{
	COUNT;
	return CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function_of(kernel), threads, shared, flags);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared)
{
	COUNT;
	return CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function_of(kernel), threads, shared, 0);
}

cudaError_t find_variable(void **to, const void *host)
{
	struct entry *it = entry_of(host);

	if (!it || !it->bytes)
		return INVALID_SYMBOL;
	pthread_mutex_lock(&lock);
	if (!it->variable)
		D(standin_variable)((CUdeviceptr *)&it->variable, it->bytes);
	pthread_mutex_unlock(&lock);
	*to = it->variable;
	return SUCCESS;
}

API cudaError_t cudaGetSymbolAddress(void **to, const void *host)
{
	COUNT;
	return COUNTED(kept(bind_thread() ?: find_variable(to, host)));
}

API cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset, int kind)
{
	COUNT;
	void *to;

	(void)kind;
	if (bind_thread() || find_variable(&to, host))
		return COUNTED(kept(bind_thread() ?: INVALID_SYMBOL));
	return CALL(cuMemcpyHtoD_v2, (CUdeviceptr)to + offset, from, bytes);
}
