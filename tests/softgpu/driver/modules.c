/* SPDX-License-Identifier: Apache-2.0 */
/* Functions are names: no code is read. */
#include <stdlib.h>
#include <string.h>
#include "soft.h"

struct module {
	struct variable *variables;
};
struct function {
	char name[1];
};

static CUresult load(CUmodule *module, const void *image)
{
	if (unusable())
		return unusable();
	*module = calloc(1, sizeof(**module));
	(*module)->variables = variables_in(image);
	return SUCCESS;
}

static CUresult unload(CUmodule module)
{
	drop_variables(module->variables);
	free(module);
	return SUCCESS;
}

static CUresult find(CUfunction *function, const char *name)
{
	*function = calloc(1, sizeof(**function) + strlen(name));
	strcpy((*function)->name, name);
	return SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	COUNT;
	return COUNTED(load(module, image));
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count_, int *options, void **values)
{
	COUNT;
	(void)count_, (void)options, (void)values;
	return COUNTED(load(module, image));
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *binary)
{
	COUNT;
	return COUNTED(load(module, binary));
}

API CUresult cuModuleUnload(CUmodule module)
{
	COUNT;
	return COUNTED(unload(module));
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
	COUNT;
	return COUNTED(find_variable(module->variables, name, address, bytes));
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	COUNT;
	(void)module;
	return COUNTED(find(function, name));
}

/* A library is a module of all contexts, its kernels are functions: cuLaunchKernel() takes either. */
API CUresult cuLibraryLoadData(CUmodule *library, const void *code, int *jit, void **jit_values, unsigned jit_count,
			       int *options, void **values, unsigned count_)
{
	COUNT;
	(void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count_;
	*library = calloc(1, sizeof(**library));
	(*library)->variables = variables_in(code);
	return COUNTED(SUCCESS);
}

API CUresult cuLibraryUnload(CUmodule library)
{
	COUNT;
	return COUNTED(unload(library));
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule library, const char *name)
{
	COUNT;
	return COUNTED(find_variable(library->variables, name, address, bytes));
}

API CUresult cuLibraryGetKernel(CUfunction *kernel, CUmodule library, const char *name)
{
	COUNT;
	(void)library;
	return COUNTED(find(kernel, name));
}

API CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel)
{
	COUNT;
	*function = kernel;
	return COUNTED(SUCCESS);
}

API CUresult cuFuncGetName(const char **name, CUfunction function)
{
	COUNT;
	if (!name || !function)
		return COUNTED(INVALID_VALUE);
	*name = function->name;
	return COUNTED(SUCCESS);
}

API CUresult cuKernelGetName(const char **name, CUfunction kernel)
{
	COUNT;
	if (!name || !kernel)
		return COUNTED(INVALID_VALUE);
	*name = kernel->name;
	return COUNTED(SUCCESS);
}

/* By CUDA's number: threads for each block, shared, constant, local, registers, PTX, binary, cache, dynamic shared. */
static int value_of(int attribute)
{
	static const int values[] = {1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1};

	return attribute >= 0 && attribute < 10 ? values[attribute] : 0;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	COUNT;
	(void)function;
	*value = value_of(attribute);
	return COUNTED(SUCCESS);
}

API CUresult cuKernelGetAttribute(int *value, int attribute, CUfunction kernel, CUdevice device)
{
	COUNT;
	(void)kernel, (void)device;
	*value = value_of(attribute);
	return COUNTED(SUCCESS);
}

API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	COUNT;
	(void)function, (void)attribute, (void)value;
	return COUNTED(SUCCESS);
}

API CUresult cuFuncSetCacheConfig(CUfunction function, int preferred)
{
	COUNT;
	(void)function, (void)preferred;
	return COUNTED(SUCCESS);
}

/* An argument of a kernel, for the copies of a part of a tensor: no kernel reads it. */
API CUresult cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
				    const uint64_t *strides, const unsigned *box, const unsigned *element_strides,
				    int interleave, int swizzle, int promotion, int fill)
{
	COUNT;
	(void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box, (void)element_strides;
	(void)interleave, (void)swizzle, (void)promotion, (void)fill;
	memset(map, 0, 128);
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
