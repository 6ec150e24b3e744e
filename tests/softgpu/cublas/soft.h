/* SPDX-License-Identifier: Apache-2.0 */
/* What libcublas and libcublasLt share, for programs that multiply matrices: NVIDIA's own have CUDA's runtime linked
 * in, which does not run on a simulated driver. A product is a launch of a kernel by the driver, as it is with
 * NVIDIA's; nothing is multiplied. */
#pragma once
#include "../counts.h"
#include "../cuda.h"

typedef int cublasStatus_t; /* cublas_api.h */
enum { CUBLAS_NOT_INITIALIZED = 1, CUBLAS_INVALID_VALUE = 7, CUBLAS_EXECUTION_FAILED = 13, CUBLAS_NOT_SUPPORTED = 15 };

typedef struct handle {
	CUcontext context;
	CUfunction kernel;
	CUstream stream;
	int math, pointers;
} * cublasHandle_t; /* libcublasLt takes it too */

/* ---- kernel.c ---- */
cublasStatus_t prepare(cublasHandle_t handle); /* the thread's context becomes the handle's */
cublasStatus_t launch(cublasHandle_t handle, CUstream stream);

#define UNWRITTEN(name)                                                                                      \
	API cublasStatus_t name(void)                                                                        \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(CUBLAS_NOT_SUPPORTED);                                                               \
	}
