/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "counts.h"
#include "environment.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM 1024

static struct count *table;
static int kept; /* in a file, for others */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Maps this process's file at an address, or anywhere. */
static struct count *map_file(void *at)
{
	const char *folder = getenv("SOFTGPU_COUNTS");
	int fd = -1, flags = (at ? MAP_FIXED : 0) | (folder ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
	char path[4096];
	void *mapped;

	if (folder) {
		snprintf(path, sizeof(path), "%s/%d." LIBRARY, folder, getpid());
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd < 0 || ftruncate(fd, ROOM * sizeof(struct count))) {
			fprintf(stderr, "softgpu: cannot write %s: SOFTGPU_COUNTS has to be a folder\n", path);
			abort();
		}
	}
	mapped = mmap(at, ROOM * sizeof(struct count), PROT_READ | PROT_WRITE, flags, fd, 0);
	if (fd >= 0)
		close(fd);
	if (mapped == MAP_FAILED)
		abort();
	return mapped;
}

static struct count *find(const char *name)
{
	struct count *found = NULL;

	for (int i = 0; i < ROOM && !found; i++)
		if (!table[i].name[0] || !strcmp(table[i].name, name))
			found = strncpy(table[i].name, name, sizeof(table[i].name) - 1) ? &table[i] : NULL;
	if (!found)
		abort();
	return found;
}

/* Random for each execve(2): getauxval(3). */
static uint64_t image(void)
{
	uint64_t bytes;

	memcpy(&bytes, (const void *)getauxval(AT_RANDOM), sizeof(bytes));
	return bytes;
}

/* The file may be that of the program before an exec, or of an ended process with the same pid: of it only the Xids stay,
 * which NVML has reported. */
static void begin_image(void)
{
	static struct count before[ROOM];

	if (find("process image")->bytes == image())
		return;
	memcpy(before, table, sizeof(before));
	memset(table, 0, sizeof(before));
	find("process image")->bytes = image();
	for (int i = 0; i < ROOM; i++)
		if (!strncmp(before[i].name, "xid ", 4))
			*find(before[i].name) = before[i];
}

/* The child of a fork counts for itself, from 0, in the places that its pointers lead to. */
static void after_fork(void)
{
	static struct count before[ROOM];

	memcpy(before, table, sizeof(before));
	map_file(table);
	for (int i = 0; i < ROOM; i++) {
		memset(&table[i], 0, sizeof(table[i]));
		memcpy(table[i].name, before[i].name, sizeof(before[i].name));
	}
	find("process image")->bytes = image();
	pthread_mutex_init(&lock, NULL);
}

static void begin(void)
{
	table = map_file(NULL);
	begin_image();
	kept = getenv("SOFTGPU_COUNTS") != NULL;
	pthread_atfork(NULL, NULL, after_fork);
}

int are_kept(void)
{
	pthread_once(&once, begin);
	return kept;
}

struct count *count_of(const char *name)
{
	struct count *found;

	pthread_once(&once, begin);
	pthread_mutex_lock(&lock);
	found = find(name);
	pthread_mutex_unlock(&lock);
	return found;
}

void add_bytes(const char *name, int64_t calls, int64_t bytes)
{
	struct count *count;

	if (!are_kept())
		return;
	count = count_of(name);
	__atomic_fetch_add(&count->calls, calls, __ATOMIC_RELAXED);
	__atomic_fetch_add(&count->bytes, bytes, __ATOMIC_RELAXED);
}

/* The number of a function in "FUNCTION=NUMBER,FUNCTION=NUMBER"; 0 without one. */
static long number_in(const char *set, const char *function)
{
	size_t length = strlen(function);

	for (; set && *set; set += strcspn(set, ","), set += *set == ',')
		if (!strncmp(set, function, length) && set[length] == '=')
			return strtol(set + length + 1, NULL, 0);
	return 0;
}

/* CUDA's errors after which a process can do no work any more (cuda.h: "must be terminated and relaunched"). */
int ends_context(long code)
{
	return code == 214 || code == 220 || code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 719);
}

static int needs_context(const char *function)
{
	static const char *const prefixes[] = {"cuMem", "cuLaunch", "cuStream", "cuEvent", "cuGraph", "cuCtxSynchronize"};

	for (unsigned i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(function, prefixes[i], strlen(prefixes[i])))
			return 1;
	return 0;
}

/* Of the driver. */
__attribute__((weak)) void faulted(int code);
__attribute__((weak)) int ordered(const char *function);

int refusal(const char *function)
{
	static int ended;
	const struct variables *set = variables();
	int code = ordered ? ordered(function) : 0;
	long slow;

	if (code || (!set->set[SLOW] && !set->set[FAIL] && !ended))
		return code;
	slow = number_in(set->set[SLOW], function), code = number_in(set->set[FAIL], function);
	if (slow)
		usleep(slow / 1000);
	if (ended && needs_context(function))
		return ended;
	if (faulted && ends_context(code)) {
		faulted(code);
		ended = code;
	}
	return code;
}
