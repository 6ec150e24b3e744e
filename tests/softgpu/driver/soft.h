/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the soft driver share. Device memory is host memory; kernels do nothing and take SOFTGPU_KERNEL_NS
 * of their stream's time; copies are made at once.
 *
 *   SOFTGPU_DEVICES=n     how many GPUs (2)           SOFTGPU_KERNEL_NS=n   how long a kernel runs (0)
 *   SOFTGPU_BYTES=n       memory of each (80 GiB): the first process of a folder decides
 *   SOFTGPU_VERSION=n     of the driver (13000)       SOFTGPU_COUNTS=folder where calls are counted (counts.h)
 * and, also while the process runs,
 *   SOFTGPU_FAIL=cuLaunchKernel=719,cuMemAlloc_v2=2   such calls do nothing and return that code. After one of those that
 *                         end a context (700, 719 and others) all calls of work and memory do, and there is an Xid.
 *   SOFTGPU_SLOW=cuStreamSynchronize=2000000          such calls take so many ns longer */
#pragma once
#include "../counts.h"
#include "../cuda.h"
#include "../environment.h"

/* A library for tests of probes, which make calls that no program does: none needs cuInit(), also after a fork; one without
 * a current context is of GPU 0; no function, graph, event, pool, ended context or description of a copy is looked at;
 * nothing lies behind device addresses and handles of memory, so that a test may have more than the machine. */
#ifndef HOLLOW
#define HOLLOW 0
#endif

#define MAX_DEVICES 64
#define GRANULE (2ull << 20)

struct condition { /* of memory that a stream waits for */
	uint64_t address, value;
	int bytes, operation;
	struct condition *next;
};

/* ---- contexts.c ---- */
struct context {
	CUdevice device;
	int holders; /* of a primary context */
	int destroyed;
	unsigned flags;
	size_t limits[16];
	uint64_t busy_until; /* of all its streams, in ns of CLOCK_MONOTONIC */
	uint64_t legacy;     /* of the legacy stream */
	struct stream *streams;
	struct event *events;
	struct condition *conditions; /* of the legacy stream */
};
CUcontext bound(void);   /* the thread's; NULL without one */
CUcontext current(void); /* to which its calls belong */
CUresult unusable(void); /* why the current context cannot be used, 0 if it can */
int is_alive(CUcontext context); /* whether a handle is valid */
#define NEED_CONTEXT                                                                                         \
	do {                                                                                                 \
		if (unusable())                                                                              \
			return COUNTED(unusable());                                                          \
	} while (0)

/* ---- initialization.c ---- */
CUresult uninitialized(const char *function); /* what a function returns without cuInit(), 0 if it needs none */

/* ---- devices.c ---- */
int device_count(void);
int physical(int device); /* its number for all processes, as NVML has it; -1 if the process does not see it */
void note_gpu(const char *of, int device, int64_t calls, int64_t bytes);
uint64_t setting(const char *name, uint64_t otherwise);
enum { IN_HOST_MEMORY = -1, NOWHERE = -2 };
int place(const CUlocation *at); /* a device or one of these */

/* ---- holdings.c: GPUs by the number that they have for all processes ---- */
int take(int gpu, uint64_t bytes);
void give(int gpu, uint64_t bytes);
uint64_t unused_bytes(int gpu);
uint64_t capacity(void);

/* ---- ranges.c: what lies where ---- */
enum kind { KIND_DEVICE, KIND_POOL, KIND_VMM, KIND_MANAGED, KIND_PINNED, KIND_IMPORTED, KIND_MODULE, KIND_GRAPH };
struct range {
	uint64_t begin, end, id;
	enum kind kind;
	int device, fd;
	unsigned flags;
	int registered; /* host memory of the application's own */
	int host; /* of a pool or a handle of host memory */
	int no_access; /* mapped, and not yet made accessible */
	struct physical *physical;
	CUmemoryPool pool;
	CUcontext context;
};
int find_range(uint64_t address, struct range *to);
int overlaps(uint64_t begin, uint64_t end);
int is_accessible(uint64_t begin, uint64_t bytes); /* to the GPU, from end to end */
int give_access(uint64_t begin, uint64_t bytes);
void add_range(struct range range);
int take_range(uint64_t begin, struct range *to);
int change_range(uint64_t begin, int fd);
int range_of_context(CUcontext context, struct range *to);
int is_device(const struct range *range);
/* Room on a device, taken if there is enough, also from managed memory; of what has no range. */
int reserve(int device, uint64_t bytes);
int reserve_unused(int device, uint64_t bytes); /* only what nothing has */
void give_back(int device, uint64_t bytes);
const char *kind_name(enum kind kind);
size_t pages(size_t bytes);

/* ---- managed.c ---- */
void add_managed(uint64_t begin, uint64_t end);
void drop_managed(uint64_t begin);
int evict_managed(int device, uint64_t bytes); /* to host memory; 0 if there was none */

/* ---- reservations.c ---- */
int is_reserved(uint64_t begin, uint64_t end);

/* ---- hollow.c ---- */
uint64_t take_addresses(uint64_t bytes); /* 0: none are left */
void give_addresses(uint64_t address, uint64_t bytes);

/* ---- memory.c ---- */
void release_context(CUcontext context);
uint64_t map_graph(int device, uint64_t bytes); /* addresses for memory of graphs */
void unmap_graph(uint64_t address);

/* ---- peers.c ---- */
void forget_peers(CUcontext context);

/* ---- streams.c ---- */
struct stream {
	CUcontext context;
	unsigned flags;
	int priority;
	uint64_t id, busy_until;
	struct capture *capture; /* that it is part of */
	CUstream next_joined;
	struct condition *conditions;
	int alive;
	CUstream next, previous; /* of its context's */
};
uint64_t now(void);
void sleep_until(uint64_t at);
uint64_t stream_end(CUstream stream);
struct condition **conditions_of(CUstream stream);
CUdevice device_of_stream(CUstream stream);
CUresult unusable_stream(CUstream stream); /* why nothing can be issued to it, 0 if it can */
void end_streams(CUcontext context);
void wait_for_streams(CUcontext context); /* that wait for memory */
enum { GREATEST_PRIORITY = -5, LEAST_PRIORITY = 0 };
uint64_t kernel_ns(void);
void occupy(CUstream stream, uint64_t ns);
void delay(CUstream stream, uint64_t until);

/* ---- events.c ---- */
void end_events(CUcontext context);

/* ---- values.c ---- */
int are_met(struct condition **first);
void wait_for_values(struct condition **first);

/* ---- orders.c ---- */
void wait_until(uint64_t at);

/* ---- ipc.c ---- */
int shared_file(const struct range *range); /* with its memory; -1 if there is none */
CUresult open_memory(CUdeviceptr *address, int pid, int fd, uint64_t bytes, CUmemoryPool pool);

/* ---- pools.c ---- */
struct pool_name { /* for other processes */
	int pid, number;
};
struct pool_name name_of_pool(CUmemoryPool pool);
int is_exportable(CUmemoryPool pool);
int is_imported(CUmemoryPool pool);
CUmemoryPool imported_pool(int device, struct pool_name name);
int is_pool(CUmemoryPool pool); /* and not destroyed */
int device_of_pool(CUmemoryPool pool);
CUmemoryPool pool_of_device(CUdevice device);
int take_from_pool(CUmemoryPool pool, uint64_t bytes);
void give_to_pool(CUmemoryPool pool, uint64_t bytes);

/* ---- variables.c ---- */
struct variable;
struct variable *variables_in(const void *image);
void drop_variables(struct variable *it);
CUresult find_variable(const struct variable *it, const char *name, CUdeviceptr *address, size_t *bytes);

extern __thread int own_default; /* more than 0 in functions with the suffix _ptsz or _ptds */

/* A function and its variant for programs in which each thread has a default stream of its own: one body each, as the
 * driver has, for a probe on one sees nothing of the other. */
#define BOTH(name, suffix, parameters, ...)                                                                  \
	API CUresult name parameters                                                                         \
	{                                                                                                    \
		COUNT;                                                                                       \
		return COUNTED(__VA_ARGS__);                                                                 \
	}                                                                                                    \
	API CUresult name##suffix parameters                                                                 \
	{                                                                                                    \
		COUNT;                                                                                       \
		own_default++;                                                                               \
		int answer_ = COUNTED(__VA_ARGS__);                                                          \
		own_default--;                                                                               \
		return answer_;                                                                              \
	}

/* ---- graphs.c ---- */
struct node {
	int type;
	size_t kernels;
	struct graph_memory *memory; /* that it allocates or frees */
	struct node *next;
};
struct graph {
	size_t nodes, kernels, memory_nodes;
	struct node *first;
};
struct graph_allocation { /* CUDA_MEM_ALLOC_NODE_PARAMS */
	CUpoolProperties pool;
	const CUaccess *access;
	size_t access_count, bytes;
	CUdeviceptr address;
};
CUgraph new_graph(void);
int free_graph(CUgraph graph); /* 0: there is none */
CUgraphNode add_node(CUgraph graph, int type);
void add_child(CUgraph graph, size_t kernels); /* the node of another graph */
CUgraphNode add_allocation_node(CUgraph graph, struct graph_memory *memory);
CUresult add_free_node(CUgraph graph, uint64_t address, CUgraphNode *node);

/* ---- executables.c ---- */
void forget_graph(CUgraph graph);

/* ---- graph_memory.c ---- */
struct graph_memory *make_graph_memory(int device, uint64_t bytes); /* of one holder; NULL without addresses */
uint64_t graph_address(const struct graph_memory *it);
struct graph_memory *graph_memory_at(uint64_t address);
void hold_graph_memory(struct graph_memory *it);
void let_go_graph_memory(struct graph_memory *it);
int is_graph_memory_in_use(const struct graph_memory *it);
int take_graph_memory(struct graph_memory *it); /* 0 without room on the GPU */
void use_graph_memory(struct graph_memory *it);
int free_graph_memory(struct graph_memory *it); /* 0: it was not in use */
int free_graph_memory_at(uint64_t address);

/* ---- captures.c ---- */
/* Whether what is issued to this stream becomes a node of a graph and is not done. */
int captured(CUstream stream, int type);
struct capture *capture_of(CUstream stream);
CUresult add_captured_allocation(CUstream stream, int device, uint64_t bytes, uint64_t *address);
CUresult add_captured_free(CUstream stream, uint64_t address);
void add_captured_child(CUstream stream, size_t kernels);
int is_forbidden(void); /* to wait or to allocate */
int is_forbidden_for(CUstream stream);
void join_capture(CUstream stream, struct capture *capture);
void leave_capture(CUstream stream);

#define NEED_NO_CAPTURE                                                                                      \
	do {                                                                                                 \
		if (is_forbidden())                                                                          \
			return COUNTED(CAPTURE_UNSUPPORTED);                                                 \
	} while (0)

/* ---- handles.c ---- */
enum handle_kind { HANDLE_STREAM, HANDLE_EVENT, HANDLE_POOL, HANDLE_GRAPH, HANDLE_EXECUTABLE, HANDLE_MEMORY };
void *hold_handle(enum handle_kind kind, void *of); /* returns it; as often as it may be let go */
int let_go_handle(enum handle_kind kind, const void *of); /* 0: it is not valid */
int is_handle(enum handle_kind kind, const void *of);
