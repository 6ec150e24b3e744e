/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for PyTorch's libc10.so: the function to which the caching allocator reports its blocks, under the name that
 * C++ gives it. A device is two bytes, its type and its number. */
#include <stddef.h>
#include <stdint.h>

void report(void *block, int64_t bytes, size_t allocated, size_t reserved,
	    uint16_t device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

void report(void *block, int64_t bytes, size_t allocated, size_t reserved, uint16_t device)
{
	__asm__ volatile("" : : "r"(block), "r"(bytes), "r"(allocated), "r"(reserved), "r"((int)device));
}
