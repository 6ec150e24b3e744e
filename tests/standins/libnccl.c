/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for NCCL: its names, signatures and the offsets of struct ncclComm of one release, without GPUs and without
 * other ranks. What a call takes is in NCCL_STANDIN_DELAY ("3:200": 200 ms on rank 3) or standin_stall(). With
 * -DRCCL it has RCCL's functions, of which some are made of others. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#ifndef VERSION
#define VERSION 22304
#define COMM_HASH 246944
#define SEQUENCE 252568
#define SIZE 253152
#endif
#ifdef HASHLESS
#define MAGIC 5
#else
#define MAGIC 0x0280028002800280ull
#endif

typedef struct {
	char internal[128];
} ncclUniqueId;
typedef enum { ncclSuccess, ncclSystemError = 2, ncclInvalidArgument = 4, ncclInProgress = 7 } ncclResult_t;
typedef int ncclDataType_t, ncclRedOp_t;
typedef void *cudaStream_t;
typedef void *ncclWindow_t;

struct ncclComm {
	uint64_t startMagic;
	char before[COMM_HASH - 16];
	uint64_t magic;
	uint64_t commHash;
	int rank, nRanks, cudaDev;
	char between[SEQUENCE - COMM_HASH - 20];
	uint64_t seqNumber[5];
	char after[SIZE - SEQUENCE - 56];
	int splits;
	int asyncError;
	uint64_t endMagic;
};
typedef struct ncclComm *ncclComm_t;
_Static_assert(offsetof(struct ncclComm, commHash) == COMM_HASH, "commHash");
_Static_assert(offsetof(struct ncclComm, seqNumber) == SEQUENCE, "seqNumber");
_Static_assert(sizeof(struct ncclComm) == SIZE, "size");

typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} ncclConfig_t;

enum { Broadcast, Reduce, AllGather, ReduceScatter, AllReduce };

/* As NCCL exports its functions: pncclX, and ncclX as a weak name of it. */
#define API(name, ...)                                                                                       \
	ncclResult_t pnccl##name(__VA_ARGS__);                                                               \
	ncclResult_t nccl##name(__VA_ARGS__) __attribute__((weak, alias("pnccl" #name)));                    \
	ncclResult_t pnccl##name(__VA_ARGS__)

static __thread int depth;
static __thread const char *failing;
static __thread ncclResult_t failure;
static __thread uint64_t stall;

void standin_stall(uint64_t ns)
{
	stall = ns;
}

void standin_fail(const char *name, ncclResult_t code)
{
	failing = name;
	failure = code;
}

void standin_async_error(ncclComm_t comm, int code)
{
	comm->asyncError = code;
}

static void wait_ns(uint64_t ns)
{
	struct timespec t = {ns / 1000000000, ns % 1000000000};

	if (ns)
		nanosleep(&t, NULL);
}

static ncclResult_t end(const char *name)
{
	wait_ns(stall);
	stall = 0;
	return failing && !strcmp(failing, name) ? failure : ncclSuccess;
}

static void delay(const struct ncclComm *comm)
{
	const char *set = getenv("NCCL_STANDIN_DELAY");
	int rank, ms;

	if (set && sscanf(set, "%d:%d", &rank, &ms) == 2 && rank == comm->rank)
		wait_ns(ms * 1000000ull);
}

static __attribute__((noinline)) ncclResult_t CommCheck(struct ncclComm *comm)
{
	return comm && comm->startMagic == MAGIC && comm->endMagic == MAGIC ? ncclSuccess
									    : ncclInvalidArgument;
}

/* What the calls of an open group are to launch: as NCCL does, they are counted when it ends. */
#define MOST_PENDING 64
static __thread uint64_t *pending[MOST_PENDING];
static __thread int waiting;

static void launch(void)
{
	while (waiting)
		++*pending[--waiting];
}

static ncclResult_t enqueue(int function, ncclComm_t comm, const char *name)
{
	ncclResult_t result = CommCheck(comm);

	if (result)
		return result;
	delay(comm);
	result = end(name);
	if (result || function < 0 || waiting == MOST_PENDING)
		return result;
	pending[waiting++] = &comm->seqNumber[function];
	if (!depth)
		launch();
	return ncclSuccess;
}

#define COLLECTIVE(name, function, ...)                                                                      \
	API(name, __VA_ARGS__)                                                                               \
	{                                                                                                    \
		return enqueue(function, comm, "nccl" #name);                                                \
	}

/* What has no elements is discarded. */
#define COUNTED(function) (count ? (int)function : -1)
#define BUFFERS const void *send, void *recv
#define ON ncclComm_t comm, cudaStream_t stream
#pragma GCC diagnostic ignored "-Wunused-parameter"

COLLECTIVE(AllReduce, COUNTED(AllReduce), BUFFERS, size_t count, ncclDataType_t type, ncclRedOp_t op, ON)
COLLECTIVE(ReduceScatter, COUNTED(ReduceScatter), BUFFERS, size_t count, ncclDataType_t type, ncclRedOp_t op,
	   ON)
COLLECTIVE(AllGather, COUNTED(AllGather), BUFFERS, size_t count, ncclDataType_t type, ON)
COLLECTIVE(Broadcast, COUNTED(Broadcast), BUFFERS, size_t count, ncclDataType_t type, int root, ON)
COLLECTIVE(Reduce, COUNTED(Reduce), BUFFERS, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ON)
COLLECTIVE(Send, -1, const void *send, size_t count, ncclDataType_t type, int peer, ON)
COLLECTIVE(Recv, -1, void *recv, size_t count, ncclDataType_t type, int peer, ON)

API(Bcast, void *buffer, size_t count, ncclDataType_t type, int root, ON)
{
	return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

API(GroupStart, void)
{
	depth++;
	return ncclSuccess;
}

static ncclResult_t end_group(const char *name)
{
	ncclResult_t result = end(name);

	if (result && result != ncclInProgress)
		waiting = 0;
	launch();
	return result;
}

API(GroupEnd, void)
{
	if (--depth)
		return ncclSuccess;
	return end_group("ncclGroupEnd");
}

/* As NCCL does it: without an estimate to fill in, and if a communicator is non-blocking, the calls are started. */
API(GroupSimulateEnd, void *estimate)
{
	bool starts =
	    !estimate || (failing && !strcmp(failing, "ncclGroupSimulateEnd") && failure == ncclInProgress);

	if (--depth)
		return ncclSuccess;
	if (!starts)
		waiting = 0;
	return end_group("ncclGroupSimulateEnd");
}

#ifdef RCCL
COLLECTIVE(AllReduceWithBias, COUNTED(AllReduce), BUFFERS, size_t count, ncclDataType_t type, ncclRedOp_t op,
	   ON, const void *bias)

API(AllToAll, BUFFERS, size_t count, ncclDataType_t type, ON)
{
	ncclGroupStart();
	for (int peer = 0; peer < comm->nRanks; peer++) {
		ncclSend(send, count, type, peer, comm, stream);
		ncclRecv(recv, count, type, peer, comm, stream);
	}
	return ncclGroupEnd();
}

API(AllToAllv, const void *send, const size_t *counts, const size_t *at, void *recv, const size_t *recvcounts,
    const size_t *recvat, ncclDataType_t type, ON)
{
	ncclGroupStart();
	for (int peer = 0; peer < comm->nRanks; peer++) {
		ncclSend(send, counts[peer], type, peer, comm, stream);
		ncclRecv(recv, recvcounts[peer], type, peer, comm, stream);
	}
	return ncclGroupEnd();
}
#else
typedef struct ncclCollConfig ncclCollConfig_t;
#define CONFIG ncclCollConfig_t *config
COLLECTIVE(AlltoAll, -1, BUFFERS, size_t count, ncclDataType_t type, ON)
COLLECTIVE(Gather, -1, BUFFERS, size_t count, ncclDataType_t type, int root, ON)
COLLECTIVE(Scatter, -1, BUFFERS, size_t count, ncclDataType_t type, int root, ON)
COLLECTIVE(AllReduceConfig, COUNTED(AllReduce), BUFFERS, size_t count, ncclDataType_t type, ncclRedOp_t op,
	   ON, CONFIG)
COLLECTIVE(ReduceConfig, COUNTED(Reduce), BUFFERS, size_t count, ncclDataType_t type, ncclRedOp_t op,
	   int root, ON, CONFIG)
COLLECTIVE(AllGatherConfig, COUNTED(AllGather), BUFFERS, size_t count, ncclDataType_t type, ON, CONFIG)
COLLECTIVE(ReduceScatterConfig, COUNTED(ReduceScatter), BUFFERS, size_t count, ncclDataType_t type,
	   ncclRedOp_t op, ON, CONFIG)
COLLECTIVE(BroadcastConfig, COUNTED(Broadcast), BUFFERS, size_t count, ncclDataType_t type, int root, ON,
	   CONFIG)
COLLECTIVE(AlltoAllConfig, -1, BUFFERS, size_t count, ncclDataType_t type, ON, CONFIG)
COLLECTIVE(GatherConfig, -1, BUFFERS, size_t count, ncclDataType_t type, int root, ON, CONFIG)
COLLECTIVE(ScatterConfig, -1, BUFFERS, size_t count, ncclDataType_t type, int root, ON, CONFIG)
COLLECTIVE(PutSignal, -1, const void *buffer, size_t count, ncclDataType_t type, int peer,
	   ncclWindow_t window, size_t offset, int signal, int context, unsigned flags, ON)
COLLECTIVE(Signal, -1, int peer, int signal, int context, unsigned flags, ON)
COLLECTIVE(WaitSignal, -1, int count, void *descriptors, ON)
#endif

API(GetVersion, int *version)
{
	if (!version)
		return ncclInvalidArgument;
	*version = VERSION;
	return ncclSuccess;
}

API(GetUniqueId, ncclUniqueId *id)
{
	memset(id, 0, sizeof(*id));
	return getrandom(id, 8, 0) == 8 ? ncclSuccess : ncclSystemError;
}

#define ACCESSOR(name, field)                                                                                \
	API(name, const struct ncclComm *comm, int *value)                                                   \
	{                                                                                                    \
		ncclResult_t result = CommCheck((struct ncclComm *)comm);                                    \
		if (!result)                                                                                 \
			*value = comm->field;                                                                \
		return result;                                                                               \
	}
ACCESSOR(CommUserRank, rank)
ACCESSOR(CommCount, nRanks)
ACCESSOR(CommCuDevice, cudaDev)

static uint64_t hash_of(const void *data, size_t bytes)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3ull;
	return hash;
}

static ncclComm_t make(uint64_t hash, int nranks, int rank)
{
	ncclComm_t comm = memset(malloc(sizeof(*comm)), 0, sizeof(*comm));

	comm->startMagic = comm->endMagic = MAGIC;
	comm->magic = comm->commHash = hash;
#ifdef HASHLESS
	comm->commHash = (uintptr_t)comm; /* a pointer, which is another on each rank */
#endif
	comm->rank = rank;
	comm->nRanks = nranks;
	comm->cudaDev = rank % 8;
	return comm;
}

API(CommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	ncclResult_t result = end("ncclCommInitRank");

	if (!result)
		*comm = make(hash_of(&id, sizeof(id)), nranks, rank);
	return result;
}

#ifdef RCCL
API(CommInitRankMulti, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, int virtual_id)
{
	ncclResult_t result = end("ncclCommInitRankMulti");

	if (!result)
		*comm = make(hash_of(&id, sizeof(id)), nranks, rank);
	return result;
}
#endif

/* Not blocking: the communicator has its identity when its state is queried. */
API(CommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	ncclResult_t result = end("ncclCommInitRankConfig");

	if (result)
		return result;
	*comm = make(hash_of(&id, sizeof(id)), nranks, rank);
	if (!config || config->blocking)
		return ncclSuccess;
	(*comm)->commHash = 0;
	return ncclInProgress;
}

API(CommInitRankScalable, ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
    ncclConfig_t *config)
{
	*comm = make(hash_of(ids, nids * sizeof(*ids)), nranks, rank);
	return end("ncclCommInitRankScalable");
}

API(CommInitAll, ncclComm_t *comms, int ndev, const int *devices)
{
	ncclUniqueId id;

	pncclGetUniqueId(&id);
	for (int i = 0; i < ndev; i++)
		comms[i] = make(hash_of(&id, sizeof(id)), ndev, i);
	return end("ncclCommInitAll");
}

/* Without the other ranks: the new communicator has half of the ranks, and `key` is this one's. */
API(CommSplit, ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config)
{
	uint64_t parts[3] = {comm->commHash, ++comm->splits, color};

	ncclResult_t result = end("ncclCommSplit");

	/* Not blocking: the new communicator is stored when it is ready. */
	*made = color < 0 || result ? NULL : make(hash_of(parts, sizeof(parts)), comm->nRanks / 2, key);
	return result;
}

API(CommShrink, ncclComm_t comm, int *exclude, int count, ncclComm_t *made, ncclConfig_t *config, int flags)
{
	uint64_t parts[2] = {comm->commHash, ++comm->splits};

	*made = make(hash_of(parts, sizeof(parts)), comm->nRanks - count, comm->rank);
	return end("ncclCommShrink");
}

API(CommGrow, ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *made,
    ncclConfig_t *config)
{
	uint64_t parts[2] = {comm ? comm->commHash : hash_of(id, sizeof(*id)), nranks};

	*made = make(hash_of(parts, sizeof(parts)), nranks, rank);
	return end("ncclCommGrow");
}

API(CommFinalize, ncclComm_t comm)
{
	return end("ncclCommFinalize");
}

API(CommRevoke, ncclComm_t comm, int flags)
{
	return end("ncclCommRevoke");
}

API(CommGetAsyncError, ncclComm_t comm, ncclResult_t *error)
{
	if (!comm->commHash) /* whoever waits for it has it ready */
		comm->commHash = comm->magic;
	*error = comm->asyncError;
	return ncclSuccess;
}

static ncclResult_t discard(ncclComm_t comm, const char *name)
{
	ncclResult_t result = CommCheck(comm);

	if (result)
		return result;
	for (int i = 0; i < waiting; i++)
		if (pending[i] >= comm->seqNumber && pending[i] < comm->seqNumber + 5)
			pending[i--] = pending[--waiting];
	comm->startMagic = comm->endMagic = 0;
	free(comm);
	return end(name);
}

API(CommDestroy, ncclComm_t comm)
{
	return discard(comm, "ncclCommDestroy");
}

API(CommAbort, ncclComm_t comm)
{
	return discard(comm, "ncclCommAbort");
}

/* What a framework with a static NCCL exports instead. */
int torch_all_reduce(int calls, size_t count)
{
	ncclUniqueId id;
	ncclComm_t comm;

	ncclGetUniqueId(&id);
	ncclCommInitRank(&comm, 8, id, 5);
	for (int i = 0; i < calls; i++)
		ncclAllReduce(NULL, NULL, count, 9, 0, comm, NULL);
	return calls;
}
