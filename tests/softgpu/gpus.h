/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs as driver and NVML both have them, and what each process holds on each: the file `gpus` in the folder that
 * SOFTGPU_COUNTS names. The driver of every process there writes it: together they hold no more than a GPU has. */
#pragma once
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { SOFT_GPUS = 64, SOFT_PROCESSES = 256 };
#define CONTEXT_BYTES (512ull << 20) /* of a process on a GPU for each of its contexts there: story.py */
#define GPU_NAME "soft GPU"
#define GPU_UUID "GPU-00000000-0000-0000-0000-%012x"
#define FIRST_BUS 0x18
#define DEFAULT_GPUS 2
#define DEFAULT_BYTES (80ull << 30)

static inline uint64_t bytes_of_gpu(void)
{
	const char *set = getenv("SOFTGPU_BYTES");

	return set ? strtoull(set, NULL, 0) : DEFAULT_BYTES;
}

struct holder {
	int pid;
	uint64_t bytes[SOFT_GPUS];
};
struct holdings {
	pthread_mutex_t lock;
	uint64_t capacity; /* of each GPU; 0 until the file is complete */
	uint64_t rows;	   /* that were ever used */
	struct holder of[SOFT_PROCESSES];
};

/* A process has a lock on the byte of its row's number. It ends with the process, however that ends, and at exec. */
static inline struct flock lock_of_row(int number)
{
	return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
}

static inline int is_held(int file, int number)
{
	struct flock lock = lock_of_row(number);

	return fcntl(file, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}
