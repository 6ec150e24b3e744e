/* SPDX-License-Identifier: Apache-2.0 */
/* Functions by name. What nobody has written here is answered with NOT_SUPPORTED; its name is in the counts. A hollow
 * library has no such answer: its pointers are those of its symbols.
 * Private tables of NVIDIA's driver are not offered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "soft.h"

static CUresult unsupported(void)
{
	COUNT;
	return COUNTED(NOT_SUPPORTED);
}

static void *self(void)
{
	static void *handle;
	Dl_info info;

	if (!handle && dladdr((void *)cuGetProcAddress_v2, &info))
		handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	return handle;
}

/* Variants with other arguments than those before: a caller built before a version of CUDA means this one. */
static const struct {
	const char *name;
	int before, variant;
} older[] = {
	{"cuCtxCreate", 13000, 2},
	{"cuGraphAddNode", 13000, 1},
	{"cuGraphExecUpdate", 12000, 1},
	{"cuMemAdvise", 13000, 1},
	{"cuMemPrefetchAsync", 13000, 1},
	{"cuMemcpyBatchAsync", 13000, 1},
	{"cuStreamGetCaptureInfo", 12030, 2},
};

static int variant_of(const char *name, int version)
{
	for (unsigned i = 0; i < sizeof(older) / sizeof(*older); i++)
		if (!strcmp(name, older[i].name) && version < older[i].before)
			return older[i].variant;
	return 4;
}

/* The newest variant of any other name is what callers built since CUDA 4 mean. */
static void *newest(const char *name, const char *suffix, int version)
{
	char full[128];
	void *found = NULL;

	for (int v = variant_of(name, version); v >= 2 && !found; v--) {
		snprintf(full, sizeof(full), "%s_v%d%s", name, v, suffix);
		found = dlsym(self(), full);
	}
	snprintf(full, sizeof(full), "%s%s", name, suffix);
	return found ? found : dlsym(self(), full);
}

API CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	COUNT;
	char full[128];

	*address = flags & PER_THREAD_DEFAULT_STREAM ? newest(name, "_ptsz", version) : NULL;
	if (!*address && flags & PER_THREAD_DEFAULT_STREAM)
		*address = newest(name, "_ptds", version);
	if (!*address)
		*address = newest(name, "", version);
	if (!*address && HOLLOW) {
		if (status)
			*status = 1;
		return COUNTED(NOT_FOUND);
	}
	if (!*address) {
		snprintf(full, 56, "missing %s", name);
		add_bytes(full, 1, 0);
		*address = unsupported;
	}
	if (status)
		*status = 0;
	return COUNTED(SUCCESS);
}

API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	COUNT;
	(void)id;
	*table = NULL;
	return COUNTED(NOT_FOUND);
}
