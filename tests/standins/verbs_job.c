/* Uses the stand-in provider through the inline calls of libibverbs, one step for each line of its input; answers each
 * with what the step's last call returned. Steps: see `step`. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHAIN 128

static void (*complete)(unsigned, int);
static void (*refuse_after)(int);
static struct ibv_qp qps[8];
static struct ibv_cq cq;

/* A chain of so many requests of this opcode, each of so many segments of so many bytes; with `every`, only each
 * such one is signaled, and the last. wr_ids count on, or are all 7. */
static int post(int qp, int count, int opcode, int segments, int bytes, int every, int same)
{
	static struct ibv_send_wr wrs[CHAIN];
	static struct ibv_sge sges[64];
	static unsigned long next;
	struct ibv_send_wr *bad = NULL;

	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < 64; i++)
		sges[i].length = bytes;
	for (int i = 0; i < count; i++) {
		wrs[i].wr_id = same ? 7 : next++;
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
		wrs[i].sg_list = sges;
		wrs[i].num_sge = segments;
		wrs[i].opcode = opcode;
		wrs[i].send_flags = (i + 1) % every && i + 1 < count ? 0 : IBV_SEND_SIGNALED;
	}
	return ibv_post_send(&qps[qp], wrs, &bad);
}

static int poll_once(int most)
{
	struct ibv_wc wc[256];

	return ibv_poll_cq(&cq, most, wc);
}

/* Posts and completes in turn, so many times; nanoseconds for each turn. */
static int spin(long turns)
{
	struct timespec begin, end;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (long i = 0; i < turns; i++) {
		post(0, 1, IBV_WR_RDMA_WRITE, 1, 1000, 1, 0);
		for (int empty = 0; empty < 20; empty++)
			poll_once(1);
		complete(1, 0);
		poll_once(1);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	return ((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec) / turns;
}

/* Polls so often and finds nothing; nanoseconds for a thousand polls. */
static int idle(long polls)
{
	struct timespec begin, end;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (long i = 0; i < polls; i++)
		poll_once(1);
	clock_gettime(CLOCK_MONOTONIC, &end);
	return ((end.tv_sec - begin.tv_sec) * 1e9 + end.tv_nsec - begin.tv_nsec) * 1000 / polls;
}

static int hostile(int kind)
{
	static struct ibv_send_wr wr;
	struct ibv_send_wr *bad;
	struct ibv_sge *nowhere = (void *)8;

	wr = (struct ibv_send_wr){.opcode = IBV_WR_SEND, .num_sge = 1, .sg_list = nowhere};
	if (kind == 0) /* segments that are not there */
		return ibv_post_send(&qps[0], &wr, &bad);
	refuse_after(0);
	if (kind == 1) /* a chain that is a circle */
		wr.next = &wr;
	if (kind == 2)
		wr.num_sge = -2147483647 - 1;
	return ibv_post_send(&qps[0], kind == 3 ? (void *)8 : &wr, &bad);
}

static int step(const char *line)
{
	char what[16];
	long a[7] = {0};

	if (sscanf(line, "%15s %ld %ld %ld %ld %ld %ld %ld", what, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6) < 1)
		return -1;
	if (!strcmp(what, "post"))
		return post(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	if (!strcmp(what, "complete"))
		return complete(a[0], a[1]), 0;
	if (!strcmp(what, "poll"))
		return poll_once(a[0]);
	if (!strcmp(what, "refuse"))
		return refuse_after(a[0]), 0;
	if (!strcmp(what, "sleep"))
		return usleep(a[0]);
	if (!strcmp(what, "spin"))
		return spin(a[0]);
	if (!strcmp(what, "idle"))
		return idle(a[0]);
	if (!strcmp(what, "hostile"))
		return hostile(a[0]);
	return -1;
}

int main(int count, char **arguments)
{
	void *provider = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
	struct ibv_context *(*opened)(void);
	char line[128];

	if (!provider)
		return fprintf(stderr, "cannot load the provider: %s\n", dlerror()), 1;
	opened = (struct ibv_context * (*)(void)) dlsym(provider, "standin_open");
	complete = (void (*)(unsigned, int))dlsym(provider, "standin_complete");
	refuse_after = (void (*)(int))dlsym(provider, "standin_refuse_after");
	cq.context = opened();
	for (int i = 0; i < 8; i++)
		qps[i] = (struct ibv_qp){
			.context = cq.context, .send_cq = &cq, .recv_cq = &cq, .qp_num = 100 + i, .qp_type = IBV_QPT_RC};
	while (fgets(line, sizeof(line), stdin)) {
		printf("%d\n", step(line));
		fflush(stdout);
	}
	return 0;
}
