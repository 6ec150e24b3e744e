/* SPDX-License-Identifier: Apache-2.0 */
/* A synthetic training job. By default it makes exact numbers of calls and prints them in one line of JSON; with
 * --steady it looks like training until it is ended: steps of forward, backward and optimiser, a checkpoint
 * now and then.
 *
 *   workload [--layer runtime|driver] [--threads N] [--launches N] [--allocations N] [--frees N] [--copies N]
 *            [--waits N] [--wait-ms N] [--hold] [--gate]
 *   workload --steady [--step-ms N] [--launches-per-step N]
 *
 * Each of the threads launches and waits; the first allocates and frees. --gate reads a line before it
 * begins, --hold another one before it ends. Times are CLOCK_REALTIME nanoseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../softgpu/cuda.h"

typedef struct {
	unsigned x, y, z;
} dim3;
CUresult cudaMalloc(void **, size_t);
CUresult cudaFree(void *);
CUresult cudaMallocHost(void **, size_t);
CUresult cudaMemcpy(void *, const void *, size_t, int);
CUresult cudaMemcpyAsync(void *, const void *, size_t, int, CUstream);
CUresult cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, CUstream);
CUresult cudaGraphLaunch(CUgraphExec, CUstream);
CUresult cudaStreamCreate(CUstream *);
CUresult cudaStreamBeginCapture(CUstream, int);
CUresult cudaStreamEndCapture(CUstream, CUgraph *);
CUresult cudaGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cudaStreamSynchronize(CUstream);
CUresult cudaDeviceSynchronize(void);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);

static struct {
	bool driver, steady, hold, gate;
	long threads, launches, allocations, frees, copies, waits, wait_ms, step_ms, launches_per_step;
} settings = {.threads = 1, .step_ms = 100, .launches_per_step = 200, .wait_ms = 1};

static CUcontext context;
static CUfunction function; /* the kernel, for the driver */
static const char kernel;   /* and for the runtime, which knows kernels by addresses of the program */
static char image[64];      /* what nvcc would have compiled: nobody reads it */
static volatile sig_atomic_t ended;

static uint64_t realtime(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void must(CUresult result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s returned %d\n", what, result);
		exit(1);
	}
}

static void launch(void)
{
	dim3 one = {1, 1, 1};
	must(settings.driver ? cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)
			     : cudaLaunchKernel(&kernel, one, one, NULL, 0, NULL),
	     "launch");
}

static void allocate(void **address, size_t bytes)
{
	must(settings.driver ? cuMemAlloc_v2((CUdeviceptr *)address, bytes) : cudaMalloc(address, bytes),
	     "allocation");
}

static void release(void *address)
{
	must(settings.driver ? cuMemFree_v2((CUdeviceptr)address) : cudaFree(address), "free");
}

static void wait_for(long ms)
{
	standin_busy(NULL, ms * 1000000);
	must(settings.driver ? cuStreamSynchronize(NULL) : cudaStreamSynchronize(NULL), "wait");
}

static size_t size_of(long i)
{
	return 1000003 + 4099 * i;
}

/* As code of nvcc's does before main(). */
__attribute__((constructor)) static void register_kernel(void)
{
	void **binary = __cudaRegisterFatBinary(image);

	__cudaRegisterFunction(binary, &kernel, "kernel", "kernel", -1, NULL, NULL, NULL, NULL, NULL);
}

static void begin_with_driver(void)
{
	CUmodule module;

	must(cuInit(0) || cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate_v2");
	must(cuModuleLoadData(&module, image) || cuModuleGetFunction(&function, module, "kernel"), "cuModuleGetFunction");
}

static void *work(void *unused)
{
	(void)unused;
	if (settings.driver)
		must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	for (long i = 0; i < settings.launches; i++)
		launch();
	for (long i = 0; i < settings.waits; i++)
		wait_for(settings.wait_ms);
	return NULL;
}

static void count(void)
{
	pthread_t threads[256];
	void *blocks[4096] = {0}, *target = NULL;
	char source[4096] = {0}, line[16];
	uint64_t allocated = 0, freed = 0, started;

	if (settings.gate && !fgets(line, sizeof(line), stdin))
		exit(1);
	if (settings.driver)
		begin_with_driver();
	started = realtime();
	for (long i = 1; i < settings.threads; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (long i = 0; i < settings.allocations; i++) {
		allocate(&blocks[i], size_of(i));
		allocated += size_of(i);
	}
	if (settings.copies) {
		allocate(&target, sizeof(source));
		allocated += sizeof(source);
	}
	for (long i = 0; i < settings.copies; i++)
		must(settings.driver ? cuMemcpyHtoD_v2((CUdeviceptr)target, source, sizeof(source))
				     : cudaMemcpy(target, source, sizeof(source), 1),
		     "copy");
	work(NULL);
	for (long i = 0; i < settings.frees; i++) {
		release(blocks[i]);
		freed += size_of(i);
	}
	for (long i = 1; i < settings.threads; i++)
		pthread_join(threads[i], NULL);
	printf("{\"pid\": %d, \"launches\": %ld, \"allocated\": %lu, \"freed\": %lu, \"copied\": %lu, "
	       "\"waits\": %ld, "
	       "\"started_ns\": %lu, \"ended_ns\": %lu}\n",
	       getpid(), settings.launches * settings.threads, allocated, freed,
	       settings.copies * sizeof(source), settings.waits * settings.threads, started, realtime());
	fflush(stdout);
	if (settings.hold && !fgets(line, sizeof(line), stdin))
		exit(1);
}

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static void rest(long us)
{
	usleep(us > 0 ? us : 0);
}

/* Activations grow through the forward pass and go in the backward one; the batch comes from pinned memory.
 */
static void step(long n, void *pinned, void *batch, CUgraphExec graph, long layers)
{
	void *activations[64];
	long per_layer = settings.launches_per_step / (2 * layers), pause = settings.step_ms * 300 / layers;

	must(cudaMemcpyAsync(batch, pinned, 16 << 20, 1, NULL), "cudaMemcpyAsync");
	for (long i = 0; i < layers; i++, rest(pause)) {
		allocate(&activations[i], (24 << 20) + (i << 21));
		for (long k = 0; k < per_layer; k++)
			launch();
	}
	for (long i = layers; i-- > 0; rest(pause)) {
		for (long k = 0; k < per_layer; k++)
			launch();
		release(activations[i]);
	}
	must(cudaGraphLaunch(graph, NULL), "cudaGraphLaunch");
	wait_for(settings.step_ms / 5 + n % 7);
}

/* A graph without nodes. */
static CUgraphExec capture(void)
{
	CUstream stream;
	CUgraph graph;
	CUgraphExec executable;

	must(cudaStreamCreate(&stream) || cudaStreamBeginCapture(stream, 0), "cudaStreamBeginCapture");
	must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
	must(cudaGraphInstantiateWithFlags(&executable, graph, 0), "cudaGraphInstantiateWithFlags");
	return executable;
}

static void train(void)
{
	void *weights[8], *pinned, *batch, *checkpoint = malloc(32 << 20);

	CUgraphExec graph = capture();

	for (int i = 0; i < 8; i++)
		allocate(&weights[i], 512 << 20);
	must(cudaMallocHost(&pinned, 16 << 20), "cudaMallocHost");
	allocate(&batch, 16 << 20);
	for (long n = 0; !ended; n++) {
		step(n, pinned, batch, graph, 12);
		if (n % 100 == 50) {
			must(cudaMemcpy(checkpoint, weights[0], 32 << 20, 2), "cudaMemcpy");
			standin_busy(NULL, 3 * settings.step_ms * 1000000);
			must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
		}
	}
}

static void read_settings(char **argument)
{
	struct {
		const char *name;
		long *number;
		bool *flag;
	} known[] = {{"--threads", &settings.threads, 0},
		     {"--launches", &settings.launches, 0},
		     {"--allocations", &settings.allocations, 0},
		     {"--frees", &settings.frees, 0},
		     {"--copies", &settings.copies, 0},
		     {"--waits", &settings.waits, 0},
		     {"--wait-ms", &settings.wait_ms, 0},
		     {"--step-ms", &settings.step_ms, 0},
		     {"--launches-per-step", &settings.launches_per_step, 0},
		     {"--steady", 0, &settings.steady},
		     {"--hold", 0, &settings.hold},
		     {"--gate", 0, &settings.gate},
		     {0}};

	for (; *argument; argument++) {
		int i = 0;

		if (!strcmp(*argument, "--layer") && argument[1]) {
			settings.driver = !strcmp(*++argument, "driver");
			continue;
		}
		while (known[i].name && strcmp(known[i].name, *argument))
			i++;
		if (known[i].flag)
			*known[i].flag = true;
		else if (known[i].number && argument[1])
			*known[i].number = atol(*++argument);
		else {
			fprintf(stderr, "%s: no such option\n", *argument);
			exit(2);
		}
	}
	if (settings.threads > 256 || settings.allocations > 4096 || settings.frees > settings.allocations) {
		fprintf(stderr, "at most 256 threads and 4096 allocations, and no more frees than these\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	read_settings(argv + 1);
	signal(SIGTERM, end);
	signal(SIGINT, end);
	if (settings.steady)
		train();
	else
		count();
	return 0;
}
