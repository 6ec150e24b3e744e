/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that was there before, and what is known of pinned memory. */
#include "soft.h"

API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	struct range range = {.begin = (uint64_t)address, .end = (uint64_t)address + bytes, .kind = KIND_PINNED, .fd = -1,
			      .registered = 1, .flags = flags, .device = current()->device, .context = current()};

	if (!address || !bytes)
		return COUNTED(INVALID_VALUE);
	if (overlaps(range.begin, range.end))
		return COUNTED(ALREADY_REGISTERED);
	add_range(range);
	return COUNTED(SUCCESS);
}

API CUresult cuMemHostUnregister(void *address)
{
	COUNT;
	struct range range;

	if (!find_range((uint64_t)address, &range) || !range.registered || !take_range((uint64_t)address, &range))
		return COUNTED(NOT_REGISTERED);
	return COUNTED(SUCCESS);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags)
{
	COUNT;
	(void)flags;
	*device = (CUdeviceptr)address;
	return COUNTED(SUCCESS);
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *address)
{
	COUNT;
	NEED_CONTEXT;
	struct range range;

	if (!find_range((uint64_t)address, &range) || range.kind != KIND_PINNED || range.registered)
		return COUNTED(INVALID_VALUE);
	*flags = range.flags;
	return COUNTED(SUCCESS);
}
