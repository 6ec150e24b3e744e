/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for PyTorch's libc10_cuda.so: an allocator that divides segments of 2 MiB into blocks of whole 512 bytes, and
 * reports each as PyTorch's does. A block that does not fit is a segment of its own, which it gives back with it. */
#include <stddef.h>
#include <stdint.h>
#include "../softgpu/cuda.h"

#define SEGMENT (2u << 20)
#define BLOCKS 65536
#define CUDA 1 /* c10::DeviceType */

extern void report(void *, int64_t, size_t, size_t,
		   uint16_t) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

static struct {
	uint64_t address, bytes;
} blocks[BLOCKS];
static uint64_t next, end, allocated, reserved;

static uint64_t segment(size_t bytes)
{
	CUdeviceptr made = 0;

	if (cuMemAlloc_v2(&made, bytes))
		return 0;
	reserved += bytes;
	return made;
}

uint64_t caching_malloc(size_t wanted)
{
	size_t bytes = (wanted + 511) / 512 * 512;
	uint64_t address = 0;

	if (bytes > SEGMENT) {
		address = segment(bytes);
	} else {
		if (next + bytes > end) {
			next = segment(SEGMENT);
			end = next ? next + SEGMENT : 0;
		}
		address = next;
		next += bytes;
	}
	for (int i = 0; address && i < BLOCKS; i++)
		if (!blocks[i].address) {
			blocks[i].address = address;
			blocks[i].bytes = bytes;
			allocated += bytes;
			report((void *)address, bytes, allocated, reserved, CUDA);
			return address;
		}
	return 0;
}

int caching_free(uint64_t address)
{
	for (int i = 0; i < BLOCKS; i++)
		if (blocks[i].address == address) {
			allocated -= blocks[i].bytes;
			blocks[i].address = 0;
			if (blocks[i].bytes > SEGMENT) {
				reserved -= blocks[i].bytes;
				cuMemFree_v2(address);
			}
			report((void *)address, -(int64_t)blocks[i].bytes, allocated, reserved, CUDA);
			return 0;
		}
	return 1;
}

/* As the CPU's allocator reports its blocks, which are none of a GPU. */
void caching_report_of_cpu(void)
{
	report((void *)0x1000, 4096, 4096, 4096, 0);
}

uint64_t caching_allocated(void)
{
	return allocated;
}

uint64_t caching_reserved(void)
{
	return reserved;
}
