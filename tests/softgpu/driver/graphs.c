/* SPDX-License-Identifier: Apache-2.0 */
/* A graph is a list of kinds of nodes, and of the memory that they take and give. */
#include <pthread.h>
#include <stdlib.h>
#include "soft.h"

enum { PARAMETERS_AT = 16 }; /* after the kind, of CUgraphNodeParams */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of nodes: several threads may issue to what is captured */

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
		if (node->memory)
			let_go_graph_memory(node->memory);
		free(node);
	}
	forget_graph(graph);
	free(graph);
	return 1;
}

static CUgraphNode insert(CUgraph graph, struct node filled)
{
	struct node *node = malloc(sizeof(*node));

	*node = filled;
	pthread_mutex_lock(&lock);
	node->next = graph->first;
	graph->first = node;
	graph->nodes++;
	graph->kernels += node->kernels;
	graph->memory_nodes += node->memory != NULL;
	pthread_mutex_unlock(&lock);
	return node;
}

CUgraphNode add_node(CUgraph graph, int type)
{
	return insert(graph, (struct node){.type = type, .kernels = type == NODE_KERNEL});
}

void add_child(CUgraph graph, size_t kernels)
{
	insert(graph, (struct node){.type = NODE_CHILD, .kernels = kernels});
}

CUgraphNode add_allocation_node(CUgraph graph, struct graph_memory *memory)
{
	return insert(graph, (struct node){.type = NODE_ALLOCATION, .memory = memory});
}

/* Of memory that a node of a graph allocates, this one or another, and no second time in the same one. */
CUresult add_free_node(CUgraph graph, uint64_t address, CUgraphNode *node)
{
	struct graph_memory *memory = graph_memory_at(address);
	CUgraphNode made;

	if (HOLLOW) {
		add_node(graph, NODE_FREE);
		return SUCCESS;
	}
	if (!memory)
		return INVALID_VALUE;
	for (struct node *it = graph->first; it; it = it->next)
		if (it->type == NODE_FREE && it->memory == memory)
			return INVALID_VALUE;
	hold_graph_memory(memory);
	made = insert(graph, (struct node){.type = NODE_FREE, .memory = memory});
	if (node)
		*node = made;
	return SUCCESS;
}

static CUresult add(CUgraphNode *node, CUgraph graph, int type)
{
	if (!is_handle(HANDLE_GRAPH, graph))
		return INVALID_VALUE;
	*node = add_node(graph, type);
	return SUCCESS;
}

/* The address is known from now on, the memory is there from a launch on. */
static CUresult add_allocation(CUgraphNode *node, CUgraph graph, struct graph_allocation *it)
{
	int device = it ? place(&it->pool.location) : NOWHERE;
	struct graph_memory *memory;

	if (!is_handle(HANDLE_GRAPH, graph) || device == NOWHERE || !it->bytes || it->pool.handle_types)
		return INVALID_VALUE;
	memory = make_graph_memory(device, it->bytes);
	if (!memory)
		return OUT_OF_MEMORY;
	it->address = graph_address(memory);
	*node = add_allocation_node(graph, memory);
	return SUCCESS;
}

static CUresult add_free(CUgraphNode *node, CUgraph graph, CUdeviceptr address)
{
	return is_handle(HANDLE_GRAPH, graph) ? add_free_node(graph, address, node) : INVALID_VALUE;
}

/* The description begins with the kind of node. */
static CUresult add_any(CUgraphNode *node, CUgraph graph, int *it)
{
	void *parameters = (char *)it + PARAMETERS_AT;

	if (*it == NODE_ALLOCATION)
		return add_allocation(node, graph, parameters);
	return *it == NODE_FREE ? add_free(node, graph, *(CUdeviceptr *)parameters) : add(node, graph, *it);
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	COUNT;
	(void)flags;
	*graph = new_graph();
	return COUNTED(SUCCESS);
}

/* What a node does is not looked at, nor after which others. */
#define AFTER const CUgraphNode *after, size_t count_
#define UNUSED (void)after, (void)count_

static CUresult add_described(CUgraphNode *node, CUgraph graph, int type, const void *parameters, CUcontext context)
{
	(void)parameters, (void)context;
	return add(node, graph, type);
}

API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, AFTER, const void *it)
{
	COUNT;
	UNUSED;
	return COUNTED(add_described(node, graph, NODE_KERNEL, it, NULL));
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, AFTER, const void *it)
{
	COUNT;
	UNUSED;
	return COUNTED(add_described(node, graph, NODE_KERNEL, it, NULL));
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, AFTER, const void *it, CUcontext context)
{
	COUNT;
	UNUSED;
	return COUNTED(add_described(node, graph, NODE_COPY, it, context));
}

API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, AFTER, const void *it, CUcontext context)
{
	COUNT;
	UNUSED;
	return COUNTED(add_described(node, graph, NODE_FILL, it, context));
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, AFTER)
{
	COUNT;
	UNUSED;
	return COUNTED(add(node, graph, NODE_EMPTY));
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, AFTER, struct graph_allocation *it)
{
	COUNT;
	UNUSED;
	return COUNTED(add_allocation(node, graph, it));
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, AFTER, CUdeviceptr address)
{
	COUNT;
	UNUSED;
	return COUNTED(add_free(node, graph, address));
}

/* Until 12.9. */
API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, AFTER, int *it)
{
	COUNT;
	UNUSED;
	return COUNTED(add_any(node, graph, it));
}

API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
			       size_t count_, int *it)
{
	COUNT;
	(void)edges, UNUSED;
	return COUNTED(add_any(node, graph, it));
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

API CUresult cuGraphDestroy(CUgraph graph)
{
	COUNT;
	return COUNTED(free_graph(graph) ? SUCCESS : INVALID_VALUE);
}
