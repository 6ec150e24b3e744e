/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that PyTorch has to find when it is loaded, and that nothing run here needs: each fails, and is counted. */
#include "soft.h"

#define UNWRITTEN(name)                                                                                      \
	API cudaError_t name(void)                                                                           \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(kept(NOT_SUPPORTED));                                                         \
	}

UNWRITTEN(cudaDeviceGetGraphMemAttribute)
UNWRITTEN(cudaDeviceSetGraphMemAttribute)
UNWRITTEN(cudaGraphAddNode)
UNWRITTEN(cudaGraphConditionalHandleCreate)
UNWRITTEN(cudaGraphDebugDotPrint)
UNWRITTEN(cudaGraphNodeGetDependencies)
UNWRITTEN(cudaKernelSetAttributeForDevice)
UNWRITTEN(cudaLibraryGetKernel)
UNWRITTEN(cudaLibraryLoadData)
UNWRITTEN(cudaLibraryUnload)
UNWRITTEN(cudaStreamBeginCaptureToGraph)
UNWRITTEN(cudaStreamUpdateCaptureDependencies)
