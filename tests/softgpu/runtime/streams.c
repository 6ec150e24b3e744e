/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and graphs: each call is the driver's of the same sense. */
#include <stdlib.h>
#include "soft.h"

API cudaError_t cudaStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	COUNT;
	return CALL(cuStreamCreateWithPriority, stream, flags, priority);
}

API cudaError_t cudaStreamCreateWithFlags(CUstream *stream, unsigned flags)
{
	COUNT;
	return CALL(cuStreamCreateWithPriority, stream, flags, 0);
}

API cudaError_t cudaStreamCreate(CUstream *stream)
{
	COUNT;
	return CALL(cuStreamCreateWithPriority, stream, 0, 0);
}

API cudaError_t cudaStreamDestroy(CUstream stream)
{
	COUNT;
	return CALL(cuStreamDestroy_v2, stream);
}

API cudaError_t cudaStreamSynchronize(CUstream stream)
{
	COUNT;
	return CALL(cuStreamSynchronize, stream);
}

API cudaError_t cudaStreamQuery(CUstream stream)
{
	COUNT;
	return CALL(cuStreamQuery, stream);
}

API cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	COUNT;
	return CALL(cuStreamWaitEvent, stream, event, flags);
}

API cudaError_t cudaStreamGetPriority(CUstream stream, int *priority)
{
	COUNT;
	return CALL(cuStreamGetPriority, stream, priority);
}

API cudaError_t cudaStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data,
				      unsigned flags)
{
	COUNT;
	return CALL(cuStreamAddCallback, stream, callback, data, flags);
}

API cudaError_t cudaLaunchHostFunc(CUstream stream, void (*function)(void *), void *data)
{
	COUNT;
	return CALL(cuLaunchHostFunc, stream, function, data);
}

API cudaError_t cudaStreamBeginCapture(CUstream stream, int mode)
{
	COUNT;
	return CALL(cuStreamBeginCapture_v2, stream, mode);
}

API cudaError_t cudaStreamEndCapture(CUstream stream, CUgraph *graph)
{
	COUNT;
	return CALL(cuStreamEndCapture, stream, graph);
}

API cudaError_t cudaStreamIsCapturing(CUstream stream, int *status)
{
	COUNT;
	return CALL(cuStreamIsCapturing, stream, status);
}

#if RELEASE < 13
API cudaError_t cudaStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
					    const CUgraphNode **dependencies, size_t *count_)
{
	COUNT;
	return CALL(cuStreamGetCaptureInfo_v2, stream, status, id, graph, dependencies, count_);
}
#endif
#if RELEASE == 11
API cudaError_t cudaStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id)
{
	COUNT;
	return CALL(cuStreamGetCaptureInfo_v2, stream, status, id, NULL, NULL, NULL);
}
#elif RELEASE == 13
API cudaError_t cudaStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
					 const CUgraphNode **dependencies, const void **edges, size_t *count_)
{
	COUNT;
	if (edges)
		*edges = NULL;
	return CALL(cuStreamGetCaptureInfo_v2, stream, status, id, graph, dependencies, count_);
}
#endif

API cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode)
{
	COUNT;
	return CALL(cuThreadExchangeStreamCaptureMode, mode);
}

API cudaError_t cudaGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count_)
{
	COUNT;
	return CALL(cuGraphGetNodes, graph, nodes, count_);
}

API cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	COUNT;
	return CALL(cuGraphInstantiateWithFlags, executable, graph, flags);
}

#if RELEASE == 11
API cudaError_t cudaGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *text, size_t room)
{
	COUNT;
	(void)failed, (void)text, (void)room;
	return CALL(cuGraphInstantiateWithFlags, executable, graph, 0);
}
#else
API cudaError_t cudaGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	COUNT;
	return CALL(cuGraphInstantiateWithFlags, executable, graph, flags);
}
#endif

#if RELEASE == 11
API cudaError_t cudaGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *at, int *result)
{
	COUNT;
	CUgraphUpdate update = {0};
	cudaError_t code = kept(bind_thread() ?: D(cuGraphExecUpdate_v2)(executable, graph, &update));

	*at = update.at;
	*result = update.result;
	return COUNTED(code);
}
#else
API cudaError_t cudaGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphUpdate *to)
{
	COUNT;
	return CALL(cuGraphExecUpdate_v2, executable, graph, to);
}
#endif

API cudaError_t cudaGraphLaunch(CUgraphExec executable, CUstream stream)
{
	COUNT;
	return CALL(cuGraphLaunch, executable, stream);
}

API cudaError_t cudaGraphDestroy(CUgraph graph)
{
	COUNT;
	return CALL(cuGraphDestroy, graph);
}

API cudaError_t cudaGraphExecDestroy(CUgraphExec executable)
{
	COUNT;
	return CALL(cuGraphExecDestroy, executable);
}

/* What a graph keeps alive is never ended here: a leak, and no use after a free. */
API cudaError_t cudaUserObjectCreate(void **object, void *data, void (*end)(void *), unsigned holders, unsigned flags)
{
	COUNT;
	(void)data, (void)end, (void)holders, (void)flags;
	*object = malloc(1);
	return COUNTED(SUCCESS);
}

API cudaError_t cudaUserObjectRelease(void *object, unsigned holders)
{
	COUNT;
	(void)object, (void)holders;
	return COUNTED(SUCCESS);
}

API cudaError_t cudaGraphRetainUserObject(CUgraph graph, void *object, unsigned holders, unsigned flags)
{
	COUNT;
	(void)graph, (void)object, (void)holders, (void)flags;
	return COUNTED(SUCCESS);
}

API cudaError_t cudaEventCreateWithFlags(CUevent *event, unsigned flags)
{
	COUNT;
	return CALL(cuEventCreate, event, flags);
}

API cudaError_t cudaEventCreate(CUevent *event)
{
	COUNT;
	return CALL(cuEventCreate, event, 0);
}

API cudaError_t cudaEventRecord(CUevent event, CUstream stream)
{
	COUNT;
	return CALL(cuEventRecord, event, stream);
}

API cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	COUNT;
	return CALL(cuEventRecordWithFlags, event, stream, flags);
}

API cudaError_t cudaEventQuery(CUevent event)
{
	COUNT;
	return CALL(cuEventQuery, event);
}

API cudaError_t cudaEventSynchronize(CUevent event)
{
	COUNT;
	return CALL(cuEventSynchronize, event);
}

API cudaError_t cudaEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
	COUNT;
	return CALL(cuEventElapsedTime, milliseconds, from, to);
}

API cudaError_t cudaEventDestroy(CUevent event)
{
	COUNT;
	return CALL(cuEventDestroy_v2, event);
}
