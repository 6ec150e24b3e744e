/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch's libtorch_cuda has to find in libcublas. Factorizations and solvers are not offered. */
#include <stdlib.h>
#include "soft.h"

API cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
	COUNT;
	cublasHandle_t made = calloc(1, sizeof(*made));
	cublasStatus_t status = prepare(made);

	if (status)
		free(made);
	else
		*handle = made;
	return COUNTED(status);
}

API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
	COUNT;
	free(handle);
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, CUstream stream)
{
	COUNT;
	handle->stream = stream;
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *space, size_t bytes)
{
	COUNT;
	(void)handle, (void)space, (void)bytes;
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int count_)
{
	COUNT;
	(void)handle, (void)count_;
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode)
{
	COUNT;
	handle->math = mode;
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int *mode)
{
	COUNT;
	*mode = handle->math;
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, int mode)
{
	COUNT;
	handle->pointers = mode;
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, int *mode)
{
	COUNT;
	*mode = handle->pointers;
	return COUNTED(SUCCESS);
}

/* Of what follows the handle nothing is read. */
#define PRODUCT(name)                                                                                        \
	API cublasStatus_t name(cublasHandle_t handle)                                                       \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(launch(handle, handle ? handle->stream : NULL));                              \
	}
#define OF_REALS(PREFIX, name) PREFIX(cublasS##name) PREFIX(cublasD##name)
#define OF_ALL(PREFIX, name) OF_REALS(PREFIX, name) PREFIX(cublasC##name) PREFIX(cublasZ##name)

OF_ALL(PRODUCT, gemm_v2)
OF_ALL(PRODUCT, gemmStridedBatched)
OF_ALL(PRODUCT, gemv_v2)
OF_REALS(PRODUCT, dot_v2)
PRODUCT(cublasCdotc_v2)
PRODUCT(cublasCdotu_v2)
PRODUCT(cublasZdotc_v2)
PRODUCT(cublasZdotu_v2)
PRODUCT(cublasDotEx)
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemmEx)

OF_ALL(UNWRITTEN, gelsBatched)
OF_ALL(UNWRITTEN, geqrfBatched)
OF_ALL(UNWRITTEN, getrfBatched)
OF_ALL(UNWRITTEN, getrsBatched)
OF_ALL(UNWRITTEN, trsmBatched)
OF_ALL(UNWRITTEN, trsm_v2)
