/* SPDX-License-Identifier: Apache-2.0 */
#include "../errors.h"
#include "soft.h"

#define PREFIX "CUDA_ERROR_"

static const char *name_of(CUresult code)
{
	switch (code) {
	case SUCCESS: return "CUDA_SUCCESS";
#define X(code, name) case code: return PREFIX #name;
		DRIVER_ERRORS(X)
#undef X
	}
	return NULL;
}

API CUresult cuGetErrorName(CUresult error, const char **text)
{
	COUNT;
	*text = name_of(error);
	return COUNTED(*text ? SUCCESS : INVALID_VALUE);
}

API CUresult cuGetErrorString(CUresult error, const char **text)
{
	COUNT;
	const char *name = name_of(error);

	*text = !name ? NULL : error ? description(error, name + sizeof(PREFIX) - 1) : "no error";
	return COUNTED(name ? SUCCESS : INVALID_VALUE);
}
