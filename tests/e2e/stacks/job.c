/* Holds GPU memory of four kinds, allocated by functions of its own, without frame pointers. It goes on at each line of
 * its standard input, and answers: it tries an allocation as long as the line is "try", holds what it allocates,
 * launches, and frees every other tensor. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

extern int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
extern int cuMemAllocManaged(unsigned long long *address, size_t bytes, unsigned flags);
extern int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream);
extern int cuMemHostAlloc(void **address, size_t bytes, unsigned flags);
extern int cuMemFree_v2(unsigned long long address);
extern int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
			  unsigned bz, unsigned shared, void *stream, void **parameters, void **extra);

#define TENSORS 23
#define LAUNCHES 4600
#define KEPT __attribute__((noinline, noclone))

static unsigned long long tensors[TENSORS];
volatile int failed;

KEPT static void allocate_tensor(unsigned long long *address, size_t bytes)
{
	failed += cuMemAlloc_v2(address, bytes);
}

KEPT static void load_weights(void)
{
	for (int n = 0; n < TENSORS; n++)
		allocate_tensor(&tensors[n], 1000003 + n);
	failed++, failed--;
}

KEPT static void reserve_cache(void)
{
	unsigned long long address;

	failed += cuMemAllocAsync(&address, 7919, NULL);
	allocate_tensor(&address, 65537);
	failed++, failed--;
}

KEPT static void share_with_host(void)
{
	unsigned long long address;
	void *host;

	failed += cuMemAllocManaged(&address, 104729, 1);
	failed += cuMemHostAlloc(&host, 1299709, 0);
}

KEPT static void step(void)
{
	for (int n = 0; n < LAUNCHES; n++)
		failed += cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void answer(const char *text)
{
	printf("%s %d\n", text, failed);
	fflush(stdout);
}

static int is_try(void)
{
	char line[16] = "";

	return fgets(line, sizeof(line), stdin) && !strcmp(line, "try\n");
}

int main(void)
{
	unsigned long long address = 0;

	answer("started");
	while (is_try()) {
		allocate_tensor(&address, 1);
		failed += cuMemFree_v2(address);
		answer("freed");
	}
	load_weights();
	reserve_cache();
	share_with_host();
	answer("allocated");
	is_try();
	step();
	answer("launched");
	is_try();
	for (int n = 0; n < TENSORS; n += 2)
		failed += cuMemFree_v2(tensors[n]);
	answer("freed");
	is_try();
	return 0;
}
