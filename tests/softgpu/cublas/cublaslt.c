/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch's libtorch_cuda has to find in libcublasLt: descriptions are of nothing, and one algorithm fits all. */
#include <stdlib.h>
#include "soft.h"

typedef struct {
	uint64_t data[8];
} algorithm;
struct result { /* cublasLtMatmulHeuristicResult_t */
	algorithm algorithm;
	size_t workspace;
	cublasStatus_t state;
	float waves;
	int reserved[4];
};

#define DESCRIPTION(name)                                                                                    \
	API cublasStatus_t name##Create(void **made)                                                         \
	{                                                                                                    \
		COUNT;                                                                                       \
		*made = calloc(1, 1);                                                                        \
		return COUNTED(SUCCESS);                                                                     \
	}                                                                                                    \
	API cublasStatus_t name##Destroy(void *made)                                                         \
	{                                                                                                    \
		COUNT;                                                                                       \
		free(made);                                                                                  \
		return COUNTED(SUCCESS);                                                                     \
	}                                                                                                    \
	API cublasStatus_t name##SetAttribute(void *made)                                                    \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(made ? SUCCESS : CUBLAS_INVALID_VALUE);                                                  \
	}

DESCRIPTION(cublasLtMatmulDesc)
DESCRIPTION(cublasLtMatmulPreference)
DESCRIPTION(cublasLtMatrixLayout)

API size_t cublasLtGetVersion(void)
{
	return RELEASE * 10000;
}

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasHandle_t handle, void *product, void *a, void *b, void *c,
						  void *d, void *preference, int wanted, struct result *results,
						  int *found)
{
	COUNT;
	(void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
	*found = wanted > 0;
	if (wanted > 0)
		*results = (struct result){.waves = 1};
	return COUNTED(SUCCESS);
}

API cublasStatus_t cublasLtMatmul(cublasHandle_t handle, void *product, const void *alpha, const void *a, void *of_a,
				  const void *b, void *of_b, const void *beta, const void *c, void *of_c, void *d,
				  void *of_d, const algorithm *algorithm, void *space, size_t bytes, CUstream stream)
{
	COUNT;
	(void)product, (void)alpha, (void)a, (void)of_a, (void)b, (void)of_b, (void)beta, (void)c, (void)of_c;
	(void)d, (void)of_d, (void)algorithm, (void)space, (void)bytes;
	return COUNTED(launch(handle, stream));
}

UNWRITTEN(cublasLtMatmulAlgoCheck)
UNWRITTEN(cublasLtMatmulAlgoConfigGetAttribute)
UNWRITTEN(cublasLtMatmulAlgoConfigSetAttribute)
UNWRITTEN(cublasLtMatmulAlgoInit)
