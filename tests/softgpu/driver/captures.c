/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of streams. What they forbid, and to which threads, is in the driver's documentation of cuStreamBeginCapture() and
 * cuThreadExchangeStreamCaptureMode(). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "soft.h"

enum { GLOBAL_MODE, THREAD_LOCAL_MODE, RELAXED_MODE, MODES };
struct capture {
	CUgraph graph;
	CUstream first, joined; /* the one with which it began, and a list of those that wait for its events */
	int mode, thread, made; /* whether the graph was made for it */
	int invalidated;
	struct capture *next;
};

static struct capture *captures;
static unsigned number; /* of captures: without one nothing is locked */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int mode;

struct capture *capture_of(CUstream stream)
{
	return (uintptr_t)stream > 2 ? __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE) : NULL;
}

int captured(CUstream stream, int type)
{
	struct capture *capture = capture_of(stream);

	return capture && add_node(capture->graph, type);
}

CUresult add_captured_allocation(CUstream stream, int device, uint64_t bytes, uint64_t *address)
{
	struct graph_memory *memory = make_graph_memory(device, bytes);

	if (!memory)
		return OUT_OF_MEMORY;
	*address = graph_address(memory);
	add_allocation_node(capture_of(stream)->graph, memory);
	return SUCCESS;
}

CUresult add_captured_free(CUstream stream, uint64_t address)
{
	return add_free_node(capture_of(stream)->graph, address, NULL);
}

void add_captured_child(CUstream stream, size_t kernels)
{
	add_child(capture_of(stream)->graph, kernels);
}

/* What waits for the device, or allocates, fails in a thread that captures, and in any while one captures in the global
 * mode, and spoils the capture, unless thread or capture are relaxed. */
int is_forbidden(void)
{
	int found = 0;

	if (!__atomic_load_n(&number, __ATOMIC_ACQUIRE) || mode == RELAXED_MODE || HOLLOW)
		return 0;
	pthread_mutex_lock(&lock);
	for (struct capture *it = captures; it; it = it->next) {
		if (it->mode == RELAXED_MODE ||
		    (it->thread != gettid() && (it->mode != GLOBAL_MODE || mode != GLOBAL_MODE)))
			continue;
		found = it->invalidated = 1;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* Nor may a stream be waited for that is captured, in any mode. */
int is_forbidden_for(CUstream stream)
{
	struct capture *capture = HOLLOW ? NULL : capture_of(stream);

	if (capture)
		capture->invalidated = 1;
	return capture || is_forbidden();
}

/* A stream that waits for an event of a capture becomes part of it. */
void join_capture(CUstream stream, struct capture *capture)
{
	if ((uintptr_t)stream <= 2 || !capture)
		return;
	pthread_mutex_lock(&lock);
	for (struct capture *it = captures; it; it = it->next)
		if (it == capture && !stream->capture) {
			stream->next_joined = it->joined;
			it->joined = stream;
			__atomic_store_n(&stream->capture, it, __ATOMIC_RELEASE);
		}
	pthread_mutex_unlock(&lock);
}

static CUresult begin(CUstream stream, CUgraph into, int wanted)
{
	struct capture *it;

	if ((uintptr_t)stream <= 2)
		return CAPTURE_UNSUPPORTED;
	if (wanted < 0 || wanted >= MODES || !is_handle(HANDLE_STREAM, stream))
		return INVALID_VALUE;
	if (stream->capture)
		return ILLEGAL_STATE;
	it = calloc(1, sizeof(*it));
	*it = (struct capture){into ?: new_graph(), stream, .mode = wanted, .thread = gettid(), .made = !into};
	pthread_mutex_lock(&lock);
	it->next = captures;
	captures = it;
	__atomic_fetch_add(&number, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&stream->capture, it, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

/* Leaves the streams without it. */
static void end_of(struct capture *capture)
{
	pthread_mutex_lock(&lock);
	for (struct capture **at = &captures; *at; at = &(*at)->next)
		if (*at == capture) {
			*at = capture->next;
			break;
		}
	__atomic_fetch_sub(&number, 1, __ATOMIC_RELEASE);
	capture->first->capture = NULL;
	for (CUstream it = capture->joined; it; it = it->next_joined)
		__atomic_store_n(&it->capture, NULL, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

static CUresult end(CUstream stream, CUgraph *graph)
{
	struct capture *capture = capture_of(stream);
	CUresult code;

	if (!capture)
		return ILLEGAL_STATE;
	if (capture->first != stream)
		return CAPTURE_UNMATCHED;
	if (capture->mode != RELAXED_MODE && capture->thread != gettid())
		return CAPTURE_WRONG_THREAD;
	end_of(capture);
	code = capture->invalidated ? CAPTURE_INVALIDATED : SUCCESS;
	*graph = code ? NULL : capture->graph;
	if (code && capture->made)
		free_graph(capture->graph);
	free(capture);
	return code;
}

/* The stream is destroyed. */
void leave_capture(CUstream stream)
{
	struct capture *capture = capture_of(stream);

	if (!capture)
		return;
	if (capture->first == stream) {
		end_of(capture);
		if (capture->made)
			free_graph(capture->graph);
		free(capture);
		return;
	}
	pthread_mutex_lock(&lock);
	for (CUstream *at = &capture->joined; *at; at = &(*at)->next_joined)
		if (*at == stream) {
			*at = stream->next_joined;
			break;
		}
	capture->invalidated = 1;
	pthread_mutex_unlock(&lock);
}

static CUresult describe(CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
			 size_t *count_)
{
	struct capture *into = capture_of(stream);

	if (unusable_stream(stream))
		return INVALID_HANDLE;
	*status = !into ? CAPTURE_NONE : into->invalidated ? CAPTURE_IS_INVALIDATED : CAPTURE_ACTIVE;
	if (into && id)
		*id = into->first->id;
	if (graph)
		*graph = into ? into->graph : NULL;
	if (dependencies)
		*dependencies = NULL;
	if (count_)
		*count_ = 0;
	return SUCCESS;
}

BOTH(cuStreamBeginCapture, _ptsz, (CUstream stream), begin(stream, NULL, GLOBAL_MODE))
BOTH(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int wanted), begin(stream, NULL, wanted))
BOTH(cuStreamBeginCaptureToGraph, _ptsz,
     (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count_, int wanted),
     ((void)after, (void)edges, (void)count_, begin(stream, graph, wanted)))
BOTH(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), end(stream, graph))
BOTH(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), describe(stream, status, NULL, NULL, NULL, NULL))
BOTH(cuStreamGetCaptureInfo_v2, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *nodes),
     describe(stream, status, id, graph, dependencies, nodes))
BOTH(cuStreamGetCaptureInfo_v3, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, const void **edges,
      size_t *nodes),
     (edges ? (void)(*edges = NULL) : (void)0, describe(stream, status, id, graph, dependencies, nodes)))

API CUresult cuThreadExchangeStreamCaptureMode(int *wanted)
{
	COUNT;
	int before = mode;

	if (*wanted < 0 || *wanted >= MODES)
		return COUNTED(INVALID_VALUE);
	mode = *wanted;
	*wanted = before;
	return COUNTED(SUCCESS);
}
