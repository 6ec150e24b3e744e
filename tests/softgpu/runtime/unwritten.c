/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that PyTorch and NCCL have to find when they are loaded, and that nothing run here needs: each fails, and is counted. */
#include "soft.h"

#define UNWRITTEN(name)                                                                                      \
	API cudaError_t name(void)                                                                           \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(kept(NOT_SUPPORTED));                                                         \
	}

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
UNWRITTEN(cudaMemcpy2D)
UNWRITTEN(cudaMemset2DAsync)
UNWRITTEN(cudaStreamBeginCaptureToGraph)
UNWRITTEN(cudaStreamUpdateCaptureDependencies)
