/* SPDX-License-Identifier: Apache-2.0 */
/* A job of 16 ranks, each on a processor of its own, that call in turn: all but the first of each communicator are late.
 * Each is in a communicator of two, one of four and one of all. Begins when a line is read, and ends at the next.
 * Usage: late_ranks ROUNDS */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 16, COMMUNICATORS = 3, LATE_US = 5000 };
typedef struct {
	char internal[128];
} ncclUniqueId;
int ncclCommInitRank(void **comm, int nranks, ncclUniqueId id, int rank);
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);

static volatile int *turn;

static void await_turn(int rank)
{
	while (*turn % RANKS != rank)
		usleep(200);
}

static void pass_turn(void)
{
	__sync_fetch_and_add((int *)turn, 1);
}

static void join(void **comm, const char *name, int color, int nranks, int rank)
{
	ncclUniqueId id = {{0}};

	snprintf(id.internal, sizeof(id.internal), "%s %d", name, color);
	if (ncclCommInitRank(comm, nranks, id, rank))
		exit(1);
}

static void work(int rank, int rounds)
{
	void *comms[COMMUNICATORS];
	cpu_set_t processor;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CPU_ZERO(&processor);
	CPU_SET(rank, &processor);
	if (sched_setaffinity(0, sizeof(processor), &processor))
		exit(2);
	join(&comms[0], "tensor", rank / 2, 2, rank % 2);
	join(&comms[1], "data", rank % 4, 4, rank / 4);
	join(&comms[2], "world", 0, RANKS, rank);
	for (int round = 0; round < rounds; round++) {
		await_turn(rank);
		usleep(LATE_US);
		for (int i = 0; i < COMMUNICATORS; i++)
			if (ncclAllReduce(NULL, NULL, 1, 7, 0, comms[i], NULL))
				exit(3);
		pass_turn();
	}
	pause();
	exit(0);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 0;
	pid_t ranks[RANKS];
	char line[8];

	turn = mmap(NULL, sizeof(*turn), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (turn == MAP_FAILED || !fgets(line, sizeof(line), stdin))
		return 1;
	for (int rank = 0; rank < RANKS; rank++)
		if (!(ranks[rank] = fork()))
			work(rank, rounds);
	while (*turn < rounds * RANKS)
		if (waitpid(-1, NULL, WNOHANG) > 0)
			return 2;
		else
			usleep(1000);
	puts("done");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 3;
	for (int rank = 0; rank < RANKS; rank++)
		kill(ranks[rank], SIGKILL);
	while (wait(NULL) > 0)
		;
	return 0;
}
