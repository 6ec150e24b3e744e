/* SPDX-License-Identifier: Apache-2.0 */
/* The few declarations of CUDA that the stand-ins and the workload share, with CUDA's values. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr, CUhandle;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct {
	int x, y, z;
} dim3;

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	INVALID_CONTEXT = 201,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713
};
enum { MEMORY_HOST = 1, MEMORY_DEVICE, MEMORY_ARRAY, MEMORY_UNIFIED };
enum { PER_THREAD_DEFAULT_STREAM = 2 };

typedef struct {
	size_t x, y;
	int type;
	void *host;
	CUdeviceptr device;
	void *array;
	size_t pitch;
} side_2d;
typedef struct {
	side_2d source, target;
	size_t width, height;
} copy_2d;

typedef struct {
	size_t x, y, z, level;
	int type;
	void *host;
	CUdeviceptr device;
	void *array, *context;
	size_t pitch, height;
} side_3d;
typedef struct {
	side_3d source, target;
	size_t width, height, depth;
} copy_3d;

typedef struct {
	int type, handle_types;
	struct {
		int type, id;
	} location;
	void *unused;
	uint64_t flags;
} allocation_properties;

typedef struct {
	void *pointer;
	size_t pitch, width, height;
} pitched;
typedef struct {
	size_t width, height, depth;
} extent;

/* Not CUDA's: the next wait for this stream (NULL: any) lasts until so many nanoseconds from now. */
void standin_busy(CUstream stream, uint64_t ns);
/* Not CUDA's: the next wait takes so long from its call on, if not longer. */
void standin_wait(uint64_t ns);
/* Not CUDA's: calls of this name on this thread return this code (NULL: none does). */
void standin_fail(const char *name, CUresult code);
/* Not CUDA's: the next allocation on this thread takes so long. */
void standin_stall(uint64_t ns);
