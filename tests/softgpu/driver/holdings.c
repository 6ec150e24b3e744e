/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the GPUs, for all processes of a folder together; without one each process has GPUs of its own. */
#define _GNU_SOURCE
#include "../gpus.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "soft.h"

_Static_assert(SOFT_GPUS >= MAX_DEVICES, "a column for each GPU");

static struct holdings *all;
static struct holder *mine;
static int file = -1;

static void complete(int shared)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	if (shared) {
		pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	}
	pthread_mutex_init(&all->lock, &attributes);
	__atomic_store_n(&all->capacity, bytes_of_gpu(), __ATOMIC_RELEASE);
}

static void map(int flags)
{
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, flags, file, 0);
	if (all == MAP_FAILED)
		abort();
}

static void open_file(const char *folder)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/gpus", folder);
	file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (file < 0 || flock(file, LOCK_EX) || ftruncate(file, sizeof(*all))) {
		fprintf(stderr, "softgpu: cannot write %s: SOFTGPU_COUNTS has to be a folder\n", path);
		abort();
	}
	map(MAP_SHARED);
	if (!all->capacity) {
		fchmod(file, 0666);
		complete(1);
	}
	flock(file, LOCK_UN);
}

static void start(void)
{
	const char *folder = getenv("SOFTGPU_COUNTS");

	if (folder) {
		open_file(folder);
	} else {
		map(MAP_PRIVATE | MAP_ANONYMOUS);
		complete(0);
		all->rows = 1;
		mine = all->of;
	}
}

/* The child of a fork holds nothing. Its copy of the descriptor would keep its parent's lock; the program may have closed
 * that one and have another file under its number. */
static void after_fork(void)
{
	struct stat here, there;
	char path[4096];

	if (file >= 0) {
		snprintf(path, sizeof(path), "%s/gpus", getenv("SOFTGPU_COUNTS") ?: "");
		if (!fstat(file, &here) && !stat(path, &there) && here.st_ino == there.st_ino && here.st_dev == there.st_dev)
			close(file);
	}
	munmap(all, sizeof(*all));
	file = -1;
	mine = NULL;
	start();
}

static void begin(void)
{
	start();
	pthread_atfork(NULL, NULL, after_fork);
}

static void forget_the_dead(void)
{
	for (unsigned i = 0; i < all->rows; i++)
		if (&all->of[i] != mine && all->of[i].pid && !is_held(file, i))
			memset(&all->of[i], 0, sizeof(all->of[i]));
}

/* A row that nobody holds is this process's from now on, if there is one. The first of a folder, also after others have
 * ended, decides how much memory a GPU has. */
static void take_row(void)
{
	int others = 0;

	for (int i = 0; i < SOFT_PROCESSES && !mine; i++) {
		struct flock lock = lock_of_row(i);

		if (fcntl(file, F_OFD_SETLK, &lock))
			continue;
		mine = &all->of[i];
		*mine = (struct holder){.pid = getpid()};
		if (all->rows <= (unsigned)i)
			all->rows = i + 1;
	}
	forget_the_dead();
	for (unsigned i = 0; i < all->rows; i++)
		others += all->of[i].pid && &all->of[i] != mine;
	if (!others)
		all->capacity = bytes_of_gpu();
}

static void enter(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, begin);
	if (pthread_mutex_lock(&all->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&all->lock);
	if (!mine)
		take_row();
}

static void leave(void)
{
	pthread_mutex_unlock(&all->lock);
}

static uint64_t unused(int gpu)
{
	uint64_t left = all->capacity;

	for (unsigned i = 0; i < all->rows; i++)
		left -= all->of[i].bytes[gpu];
	return left;
}

int take(int gpu, uint64_t bytes)
{
	int room;

	enter();
	if (bytes > unused(gpu))
		forget_the_dead();
	room = mine && bytes <= unused(gpu);
	if (room)
		mine->bytes[gpu] += bytes;
	leave();
	return room;
}

/* A child that frees what its parent had allocated before the fork, in a hollow library, has nothing to give. */
void give(int gpu, uint64_t bytes)
{
	enter();
	if (mine)
		mine->bytes[gpu] -= bytes < mine->bytes[gpu] ? bytes : mine->bytes[gpu];
	leave();
}

uint64_t unused_bytes(int gpu)
{
	uint64_t left;

	enter();
	forget_the_dead();
	left = unused(gpu);
	leave();
	return left;
}

uint64_t capacity(void)
{
	uint64_t bytes;

	enter();
	bytes = all->capacity;
	leave();
	return bytes;
}
