/* SPDX-License-Identifier: Apache-2.0 */
/* The last error of a thread, and names. One that has ended the context stays. */
#include "../errors.h"
#include "soft.h"

#define PREFIX "cudaError"

static __thread cudaError_t last;

cudaError_t kept(cudaError_t code)
{
	if (code && code != NOT_READY && !ends_context(last))
		last = code;
	return code;
}

API cudaError_t cudaGetLastError(void)
{
	COUNT;
	cudaError_t code = last;

	if (!ends_context(code))
		last = 0;
	return COUNTED(code);
}

API cudaError_t cudaPeekAtLastError(void)
{
	COUNT;
	return COUNTED(last);
}

API const char *cudaGetErrorName(cudaError_t code)
{
	switch (code) {
	case SUCCESS: return "cudaSuccess";
#define X(code, name) case code: return PREFIX #name;
		RUNTIME_ERRORS(X)
#undef X
	}
	return "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t code)
{
	switch (code) {
	case SUCCESS: return "no error";
#define X(code, name) case code: return description(code, #name);
		RUNTIME_ERRORS(X)
#undef X
	}
	return "unrecognized error code";
}
