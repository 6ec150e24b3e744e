/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and functions are names: no code is read. */
#include <stdlib.h>
#include <string.h>
#include "soft.h"

struct module {
	const void *image;
};
struct function {
	char name[1];
};

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	COUNT;
	*module = calloc(1, sizeof(**module));
	(*module)->image = image;
	return COUNTED(SUCCESS);
}

API CUresult cuModuleUnload(CUmodule module)
{
	COUNT;
	free(module);
	return COUNTED(SUCCESS);
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	COUNT;
	(void)module;
	*function = calloc(1, sizeof(**function) + strlen(name));
	strcpy((*function)->name, name);
	return COUNTED(SUCCESS);
}

/* By CUDA's number: threads for each block, shared, constant, local, registers, PTX, binary, cache, dynamic shared. */
API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	static const int values[] = {1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1};
	COUNT;
	(void)function;
	*value = attribute >= 0 && attribute < 10 ? values[attribute] : 0;
	return COUNTED(SUCCESS);
}

API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	COUNT;
	(void)function, (void)attribute, (void)value;
	return COUNTED(SUCCESS);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
								  size_t shared, unsigned flags)
{
	COUNT;
	int fit = threads > 0 ? 2048 / threads : 1;

	(void)function, (void)shared, (void)flags;
	*blocks = fit > 32 ? 32 : fit < 1 ? 1 : fit;
	return COUNTED(SUCCESS);
}
