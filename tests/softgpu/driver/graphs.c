/* SPDX-License-Identifier: Apache-2.0 */
/* A graph is a list of kinds of nodes: its launch takes the time of its kernels, and the first one the memory of its
 * allocations, until the executable is destroyed. */
#include <stdlib.h>
#include "soft.h"

struct node {
	int type;
	struct node *next;
};
struct work {
	size_t kernels;
	uint64_t bytes[MAX_DEVICES];
};
struct graph {
	size_t nodes;
	struct work work;
	struct node *first;
};
struct executable {
	struct work work;
	int launched;
};

static CUgraphNode add_node(CUgraph graph, int type)
{
	struct node *node = calloc(1, sizeof(*node));

	*node = (struct node){type, graph->first};
	graph->first = node;
	graph->nodes++;
	graph->work.kernels += type == NODE_KERNEL;
	return node;
}

int is_captured(CUstream stream)
{
	return (uintptr_t)stream > 2 && stream->graph;
}

int captured(CUstream stream, int type)
{
	return is_captured(stream) && add_node(stream->graph, type);
}

void add_allocation(CUstream stream, int device, uint64_t bytes)
{
	add_node(stream->graph, NODE_ALLOCATION);
	if (device >= 0)
		stream->graph->work.bytes[device] += bytes;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	COUNT;
	(void)flags;
	*graph = calloc(1, sizeof(**graph));
	return COUNTED(SUCCESS);
}

API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count_,
				  const void *parameters)
{
	COUNT;
	(void)after, (void)count_, (void)parameters;
	*node = add_node(graph, NODE_KERNEL);
	return COUNTED(SUCCESS);
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count_,
				  const void *copy, CUcontext context)
{
	COUNT;
	(void)after, (void)count_, (void)copy, (void)context;
	*node = add_node(graph, NODE_COPY);
	return COUNTED(SUCCESS);
}

/* `parameters` begin with the kind of node. */
API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
			       size_t count_, const int *parameters)
{
	COUNT;
	(void)after, (void)edges, (void)count_;
	*node = add_node(graph, *parameters);
	return COUNTED(SUCCESS);
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node, const void *parameters)
{
	COUNT;
	(void)executable, (void)node, (void)parameters;
	return COUNTED(SUCCESS);
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node, const void *parameters)
{
	COUNT;
	(void)executable, (void)node, (void)parameters;
	return COUNTED(SUCCESS);
}

API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const void *copy,
					    CUcontext context)
{
	COUNT;
	(void)executable, (void)node, (void)copy, (void)context;
	return COUNTED(SUCCESS);
}

static CUresult begin(CUstream stream, CUgraph into)
{
	if ((uintptr_t)stream <= 2)
		return CAPTURE_UNSUPPORTED;
	if (stream->graph)
		return ILLEGAL_STATE;
	stream->graph = into ?: calloc(1, sizeof(*into));
	return SUCCESS;
}

static CUresult end(CUstream stream, CUgraph *graph)
{
	if ((uintptr_t)stream <= 2 || !stream->graph)
		return ILLEGAL_STATE;
	*graph = stream->graph;
	stream->graph = NULL;
	return SUCCESS;
}

static CUresult describe(CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
			 size_t *count_)
{
	CUgraph into = (uintptr_t)stream > 2 ? stream->graph : NULL;

	*status = into ? CAPTURE_ACTIVE : CAPTURE_NONE;
	if (into && id)
		*id = stream->id;
	if (graph)
		*graph = into;
	if (dependencies)
		*dependencies = NULL;
	if (count_)
		*count_ = 0;
	return SUCCESS;
}

BOTH(cuStreamBeginCapture, _ptsz, (CUstream stream), begin(stream, NULL))
BOTH(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), ((void)mode, begin(stream, NULL)))
BOTH(cuStreamBeginCaptureToGraph, _ptsz,
     (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count_, int mode),
     ((void)after, (void)edges, (void)count_, (void)mode, begin(stream, graph)))
BOTH(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), end(stream, graph))
BOTH(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), describe(stream, status, NULL, NULL, NULL, NULL))
BOTH(cuStreamGetCaptureInfo_v2, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *nodes),
     describe(stream, status, id, graph, dependencies, nodes))

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int set;
	COUNT;
	int before = set;

	set = *mode;
	*mode = before;
	return COUNTED(SUCCESS);
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count_)
{
	COUNT;
	size_t i = 0;

	if (nodes)
		for (struct node *node = graph->first; node && i < *count_; node = node->next)
			nodes[i++] = node;
	*count_ = nodes ? i : graph->nodes;
	return COUNTED(SUCCESS);
}

API CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	COUNT;
	*type = node->type;
	return COUNTED(SUCCESS);
}

static CUresult instantiate(CUgraphExec *executable, CUgraph graph)
{
	*executable = calloc(1, sizeof(**executable));
	(*executable)->work = graph->work;
	return SUCCESS;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *wrong, char *log, size_t room)
{
	COUNT;
	(void)wrong, (void)log, (void)room;
	return COUNTED(instantiate(executable, graph));
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	COUNT;
	(void)flags;
	return COUNTED(instantiate(executable, graph));
}

static void give_work(const struct work *work, int devices)
{
	for (int device = 0; device < devices; device++)
		if (work->bytes[device])
			give_back(device, work->bytes[device]);
}

static int take_work(const struct work *work)
{
	for (int device = 0; device < MAX_DEVICES; device++) {
		if (!work->bytes[device] || reserve(device, work->bytes[device]))
			continue;
		give_work(work, device);
		return 0;
	}
	return 1;
}

static CUresult launch(CUgraphExec executable, CUstream stream)
{
	if (HOLLOW)
		return SUCCESS;
	if (!executable)
		return INVALID_VALUE;
	if (unusable())
		return unusable();
	if (!executable->launched && !take_work(&executable->work))
		return OUT_OF_MEMORY;
	executable->launched = 1;
	occupy(stream, executable->work.kernels * kernel_ns());
	return SUCCESS;
}

BOTH(cuGraphLaunch, _ptsz, (CUgraphExec executable, CUstream stream), launch(executable, stream))

API CUresult cuGraphExecDestroy(CUgraphExec executable)
{
	COUNT;
	if (executable && executable->launched)
		give_work(&executable->work, MAX_DEVICES);
	free(executable);
	return COUNTED(SUCCESS);
}

API CUresult cuGraphDestroy(CUgraph graph)
{
	COUNT;
	for (struct node *node = graph->first, *next; node; node = next) {
		next = node->next;
		free(node);
	}
	free(graph);
	return COUNTED(SUCCESS);
}
