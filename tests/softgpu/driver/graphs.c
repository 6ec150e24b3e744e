/* SPDX-License-Identifier: Apache-2.0 */
/* A graph is a list of kinds of nodes: its launch takes the time of its kernels, and the first one the memory of its
 * allocations, until the executable is destroyed. */
#include <pthread.h>
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
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of nodes: several threads may issue to what is captured */
struct executable {
	struct work work;
	int launched;
};

CUgraph new_graph(void)
{
	return hold_handle(HANDLE_GRAPH, calloc(1, sizeof(struct graph)));
}

int free_graph(CUgraph graph)
{
	if (!let_go_handle(HANDLE_GRAPH, graph))
		return 0;
	for (struct node *node = graph->first, *next; node; node = next) {
		next = node->next;
		free(node);
	}
	free(graph);
	return 1;
}

CUgraphNode add_node(CUgraph graph, int type)
{
	struct node *node = calloc(1, sizeof(*node));

	pthread_mutex_lock(&lock);
	*node = (struct node){type, graph->first};
	graph->first = node;
	graph->nodes++;
	graph->work.kernels += type == NODE_KERNEL;
	pthread_mutex_unlock(&lock);
	return node;
}

void add_allocation_node(CUgraph graph, int device, uint64_t bytes)
{
	add_node(graph, NODE_ALLOCATION);
	if (device >= 0)
		__atomic_fetch_add(&graph->work.bytes[device], bytes, __ATOMIC_RELAXED);
}

static CUresult add(CUgraphNode *node, CUgraph graph, int type)
{
	if (!is_handle(HANDLE_GRAPH, graph))
		return INVALID_VALUE;
	*node = add_node(graph, type);
	return SUCCESS;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	COUNT;
	(void)flags;
	*graph = new_graph();
	return COUNTED(SUCCESS);
}

API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count_,
				  const void *parameters)
{
	COUNT;
	(void)after, (void)count_, (void)parameters;
	return COUNTED(add(node, graph, NODE_KERNEL));
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count_,
				  const void *copy, CUcontext context)
{
	COUNT;
	(void)after, (void)count_, (void)copy, (void)context;
	return COUNTED(add(node, graph, NODE_COPY));
}

/* `parameters` begin with the kind of node. */
API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
			       size_t count_, const int *parameters)
{
	COUNT;
	(void)after, (void)edges, (void)count_;
	return COUNTED(add(node, graph, *parameters));
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

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count_)
{
	COUNT;
	size_t i = 0;

	if (!is_handle(HANDLE_GRAPH, graph))
		return COUNTED(INVALID_VALUE);
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
	if (!is_handle(HANDLE_GRAPH, graph))
		return INVALID_VALUE;
	*executable = hold_handle(HANDLE_EXECUTABLE, calloc(1, sizeof(**executable)));
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
	if (!is_handle(HANDLE_EXECUTABLE, executable))
		return INVALID_VALUE;
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
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
	if (!let_go_handle(HANDLE_EXECUTABLE, executable))
		return COUNTED(INVALID_VALUE);
	if (executable->launched)
		give_work(&executable->work, MAX_DEVICES);
	free(executable);
	return COUNTED(SUCCESS);
}

API CUresult cuGraphDestroy(CUgraph graph)
{
	COUNT;
	return COUNTED(free_graph(graph) ? SUCCESS : INVALID_VALUE);
}
