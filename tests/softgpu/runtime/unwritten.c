/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that PyTorch and NCCL have to find when they are loaded, and that nothing run here needs: each fails, and is counted. */
#include "soft.h"

#define UNWRITTEN(name)                                                                                      \
	API cudaError_t name(void)                                                                           \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(kept(NOT_SUPPORTED));                                                         \
	}
#define UNWRITTEN_TOO(name, suffix) UNWRITTEN(name) UNWRITTEN(name##suffix)

UNWRITTEN(cudaDeviceGetGraphMemAttribute)
UNWRITTEN(cudaDeviceSetGraphMemAttribute)
UNWRITTEN(cudaFuncSetCacheConfig)
UNWRITTEN(cudaGraphAddEmptyNode)
UNWRITTEN(cudaGraphAddEventRecordNode)
UNWRITTEN(cudaGraphAddEventWaitNode)
UNWRITTEN(cudaGraphAddHostNode)
UNWRITTEN(cudaGraphAddKernelNode)
UNWRITTEN(cudaGraphAddNode)
UNWRITTEN(cudaGraphConditionalHandleCreate)
UNWRITTEN(cudaGraphDebugDotPrint)
UNWRITTEN(cudaGraphNodeGetDependencies)
UNWRITTEN(cudaGraphNodeGetType)
UNWRITTEN(cudaKernelSetAttributeForDevice)
UNWRITTEN(cudaLibraryGetKernel)
UNWRITTEN(cudaLibraryLoadData)
UNWRITTEN(cudaLibraryUnload)
UNWRITTEN_TOO(cudaMemcpy2D, _ptds)
UNWRITTEN_TOO(cudaMemset2DAsync, _ptsz)
UNWRITTEN_TOO(cudaStreamBeginCaptureToGraph, _ptsz)
UNWRITTEN_TOO(cudaStreamUpdateCaptureDependencies, _ptsz)
