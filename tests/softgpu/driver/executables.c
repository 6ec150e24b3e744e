/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs: a launch takes the time of the kernels, and the memory of the allocations. */
#include <pthread.h>
#include <stdlib.h>
#include "soft.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };
enum { UPDATED, UPDATE_ERROR, TOPOLOGY_CHANGED, TYPE_CHANGED, NODE_UNSUPPORTED = 6 };
struct step {
	int type;
	struct graph_memory *memory;
	int freed_here; /* what this graph allocates and frees */
};
struct executable {
	size_t kernels, nodes, memory_nodes;
	struct step *steps; /* the graph's nodes */
	int frees;	    /* at each launch what the one before has left */
	CUgraph graph;	    /* NULL: it was destroyed */
	CUgraphExec next;
};
static CUgraphExec all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the above, and of launches of memory */

void forget_graph(CUgraph graph)
{
	pthread_mutex_lock(&lock);
	for (CUgraphExec it = all; it; it = it->next)
		if (it->graph == graph)
			it->graph = NULL;
	pthread_mutex_unlock(&lock);
}

/* One that has memory has one executable at a time. */
static int is_taken(CUgraph graph)
{
	CUgraphExec it = all;

	while (it && it->graph != graph)
		it = it->next;
	return it && graph->memory_nodes;
}

static int frees(const struct graph *graph, const struct graph_memory *memory)
{
	const struct node *it = graph->first;

	while (it && (it->type != NODE_FREE || it->memory != memory))
		it = it->next;
	return it != NULL;
}

static CUgraphExec make(CUgraph graph, unsigned long long flags)
{
	CUgraphExec it = calloc(1, sizeof(*it));
	size_t i = 0;

	it->graph = graph;
	it->kernels = graph->kernels;
	it->memory_nodes = graph->memory_nodes;
	it->frees = flags & AUTO_FREE_ON_LAUNCH;
	it->steps = calloc(graph->nodes, sizeof(*it->steps));
	for (struct node *node = graph->first; node; node = node->next) {
		it->steps[i++] = (struct step){node->type, node->memory,
					       node->type == NODE_ALLOCATION && frees(graph, node->memory)};
		if (node->memory)
			hold_graph_memory(node->memory);
	}
	it->nodes = i;
	return it;
}

static CUresult instantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	int taken;

	if (!is_handle(HANDLE_GRAPH, graph))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	taken = is_taken(graph);
	if (!taken) {
		*executable = hold_handle(HANDLE_EXECUTABLE, make(graph, flags));
		(*executable)->next = all;
		all = *executable;
	}
	pthread_mutex_unlock(&lock);
	return taken ? INVALID_VALUE : SUCCESS;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *wrong, char *log, size_t room)
{
	COUNT;
	(void)wrong, (void)log, (void)room;
	return COUNTED(instantiate(executable, graph, 0));
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	COUNT;
	return COUNTED(instantiate(executable, graph, flags));
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

/* Whether each allocation that the launch makes is free, and each one that it frees without having made it is not. */
static int fits(CUgraphExec it)
{
	for (size_t i = 0; i < it->nodes; i++) {
		const struct step *step = &it->steps[i];

		if (step->type == NODE_ALLOCATION && step->memory && is_graph_memory_in_use(step->memory) && !it->frees)
			return 0;
	}
	return 1;
}

static int makes(CUgraphExec it, const struct graph_memory *memory)
{
	for (size_t i = 0; i < it->nodes; i++)
		if (it->steps[i].type == NODE_ALLOCATION && it->steps[i].memory == memory)
			return 1;
	return 0;
}

/* What a free takes is that of another graph: its own has never been in use. */
static CUresult take_memory(CUgraphExec it)
{
	if (!fits(it))
		return INVALID_VALUE;
	for (size_t i = 0; i < it->nodes; i++)
		if (it->steps[i].type == NODE_ALLOCATION && it->steps[i].memory && !take_graph_memory(it->steps[i].memory))
			return OUT_OF_MEMORY;
	for (size_t i = 0; i < it->nodes; i++) {
		const struct step *step = &it->steps[i];

		if (step->type == NODE_FREE && step->memory && !makes(it, step->memory) && !free_graph_memory(step->memory))
			return INVALID_VALUE;
		if (step->type == NODE_ALLOCATION && step->memory && !step->freed_here)
			use_graph_memory(step->memory);
	}
	return SUCCESS;
}

/* To a captured stream it becomes a node, which cannot have memory. */
static CUresult launch(CUgraphExec it, CUstream stream)
{
	CUresult code = SUCCESS;

	if (HOLLOW)
		return SUCCESS;
	if (!is_handle(HANDLE_EXECUTABLE, it))
		return INVALID_VALUE;
	if (unusable() ?: unusable_stream(stream))
		return unusable() ?: INVALID_HANDLE;
	if (capture_of(stream))
		return it->memory_nodes ? INVALID_VALUE : (add_captured_child(stream, it->kernels), SUCCESS);
	pthread_mutex_lock(&lock);
	if (it->memory_nodes)
		code = take_memory(it);
	pthread_mutex_unlock(&lock);
	if (!code)
		occupy(stream, it->kernels * kernel_ns());
	return code;
}

BOTH(cuGraphLaunch, _ptsz, (CUgraphExec executable, CUstream stream), launch(executable, stream))

/* The memory that a launch has left in use stays, until it is freed. */
static CUresult destroy(CUgraphExec it)
{
	if (!let_go_handle(HANDLE_EXECUTABLE, it))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	for (CUgraphExec *at = &all; *at; at = &(*at)->next)
		if (*at == it) {
			*at = it->next;
			break;
		}
	for (size_t i = 0; i < it->nodes; i++)
		if (it->steps[i].memory)
			let_go_graph_memory(it->steps[i].memory);
	pthread_mutex_unlock(&lock);
	free(it->steps);
	free(it);
	return SUCCESS;
}

API CUresult cuGraphExecDestroy(CUgraphExec executable)
{
	COUNT;
	return COUNTED(destroy(executable));
}

/* Nodes of the same kinds in the same order. Memory belongs to its graph. */
static int difference(CUgraphExec it, CUgraph graph, CUgraphNode *at)
{
	struct node *node = graph->first;

	*at = NULL;
	if (it->nodes != graph->nodes)
		return TOPOLOGY_CHANGED;
	for (size_t i = 0; i < it->nodes; i++, node = node->next) {
		*at = node;
		if (it->steps[i].type != node->type)
			return TYPE_CHANGED;
		if (it->steps[i].memory != node->memory)
			return NODE_UNSUPPORTED;
	}
	*at = NULL;
	return UPDATED;
}

static CUresult update(CUgraphExec it, CUgraph graph, CUgraphNode *at, int *result)
{
	*result = UPDATE_ERROR;
	*at = NULL;
	if (!is_handle(HANDLE_EXECUTABLE, it) || !is_handle(HANDLE_GRAPH, graph))
		return INVALID_VALUE;
	*result = difference(it, graph, at);
	if (*result)
		return UPDATE_FAILURE;
	it->kernels = graph->kernels;
	return SUCCESS;
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphUpdate *to)
{
	COUNT;
	to->from = NULL;
	return COUNTED(update(executable, graph, &to->at, &to->result));
}

/* Of 11. */
API CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *at, int *result)
{
	COUNT;
	return COUNTED(update(executable, graph, at, result));
}
