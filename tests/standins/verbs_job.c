/* Uses the stand-in provider through the inline calls of libibverbs, one step for each line of its input; answers each
 * with what the step's last call returned. Steps: see `step`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHAIN 300
#define BEFORE 8
#define QPS 16

static void (*complete)(unsigned, int);
static void (*refuse_after)(int);
static void (*arrive)(unsigned, unsigned);
static void (*next_number)(unsigned);
static void (*delay)(unsigned);
static int (*post_bare)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int (*receive_bare)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static void (*extend)(struct ibv_cq_ex *);
static struct ibv_qp before[BEFORE]; /* made without a call that could be seen */
static struct ibv_qp *qps[QPS];
static union { /* plain until it is made one for the extended calls */
	struct ibv_cq cq;
	struct ibv_cq_ex ex;
} completions;
#define cq completions.cq
static struct ibv_pd pd;
static const char *nccl_path; /* of reduce_all */

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
	return ibv_post_send(qps[qp], wrs, &bad);
}

/* A chain of so many requests of each of these opcodes in turn, until one is negative; each of 1000 bytes. */
static int mix(int qp, int each, const long *opcodes)
{
	static struct ibv_send_wr wrs[CHAIN];
	static struct ibv_sge sge = {.length = 1000};
	struct ibv_send_wr *bad = NULL;
	int count = 0;

	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < 5 && opcodes[i] >= 0; i++)
		for (int j = 0; j < each && count < CHAIN; j++, count++) {
			wrs[count] = (struct ibv_send_wr){.wr_id = count, .sg_list = &sge, .num_sge = 1,
							  .opcode = opcodes[i], .send_flags = IBV_SEND_SIGNALED};
			if (count)
				wrs[count - 1].next = &wrs[count];
		}
	return ibv_post_send(qps[qp], wrs, &bad);
}

static void build(struct ibv_qp_ex *qp, int opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return ibv_wr_rdma_write(qp, 1, 2);
	case IBV_WR_SEND:
		return ibv_wr_send(qp);
	case IBV_WR_SEND_WITH_IMM:
		return ibv_wr_send_imm(qp, 1);
	case IBV_WR_RDMA_READ:
		return ibv_wr_rdma_read(qp, 1, 2);
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return ibv_wr_atomic_fetch_add(qp, 1, 2, 3);
	case IBV_WR_LOCAL_INV:
		return ibv_wr_local_inv(qp, 1);
	case IBV_WR_ATOMIC_WRITE:
		return ibv_wr_atomic_write(qp, 1, 2, &opcode);
	}
}

/* With so many segments; 0: none, negative: of inline data. */
static void fill(struct ibv_qp_ex *qp, int segments, int bytes)
{
	static struct ibv_sge sges[64];
	static struct ibv_data_buf buffers[64];

	for (int i = 0; i < 64; i++) {
		sges[i].length = bytes;
		buffers[i].length = bytes;
	}
	if (segments == 1)
		ibv_wr_set_sge(qp, 1, 2, bytes);
	if (segments > 1)
		ibv_wr_set_sge_list(qp, segments, sges);
	if (segments == -1)
		ibv_wr_set_inline_data(qp, sges, bytes);
	if (segments < -1)
		ibv_wr_set_inline_data_list(qp, -segments, buffers);
}

/* The same by the extended calls; aborted in the end, or posted. */
static int build_all(int qp, int count, int opcode, int segments, int bytes, int every, int abort_)
{
	static unsigned long next;
	struct ibv_qp_ex *to = (void *)qps[qp];

	ibv_wr_start(to);
	for (int i = 0; i < count; i++) {
		to->wr_id = next++;
		to->wr_flags = (i + 1) % every && i + 1 < count ? 0 : IBV_SEND_SIGNALED;
		build(to, opcode);
		fill(to, segments, bytes);
	}
	return abort_ ? ibv_wr_abort(to), 0 : ibv_wr_complete(to);
}

/* Polls by the extended calls, reading of each completion what `fields` has bits for; how many there were. */
static int poll_extended(int most, int fields)
{
	struct ibv_poll_cq_attr attributes = {0};
	int count = 0;

	for (int end = ibv_start_poll(&completions.ex, &attributes); !end; end = ibv_next_poll(&completions.ex)) {
		if (fields & 1)
			ibv_wc_read_opcode(&completions.ex);
		if (fields & 2)
			ibv_wc_read_qp_num(&completions.ex);
		if (fields & 4)
			ibv_wc_read_byte_len(&completions.ex);
		if (++count == most)
			break;
	}
	if (count)
		ibv_end_poll(&completions.ex);
	return count;
}

/* Posts a chain of so many receives. wr_ids count on from `first`, or are all 7 if it is negative. */
static int receive(int qp, int count, int first)
{
	static struct ibv_recv_wr wrs[CHAIN];
	struct ibv_recv_wr *bad = NULL;

	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < count; i++) {
		wrs[i].wr_id = first < 0 ? 7 : first + i;
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
	}
	return ibv_post_recv(qps[qp], wrs, &bad);
}

/* Makes a QP in this place, by the extended call or the plain one; its number, -1 if that failed. */
static int create(int qp, int all, int type, int extended)
{
	struct ibv_qp_init_attr_ex attributes = {
		.send_cq = &cq, .recv_cq = &cq, .qp_type = type, .sq_sig_all = all,
		.cap = {.max_send_wr = 64, .max_recv_wr = 64},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .pd = &pd};

	if (extended > 1) /* to be used by ibv_wr_start and its like */
		attributes.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

	qps[qp] = extended ? ibv_create_qp_ex(pd.context, &attributes)
			   : ibv_create_qp(&pd, (struct ibv_qp_init_attr *)&attributes);
	return qps[qp] ? (int)qps[qp]->qp_num : -1;
}

/* From RESET to RTS: enum ibv_mtu, the peer's number, the last byte of its GID and the place of the own one, both ends'
 * first packet numbers. */
static int join(int qp, int mtu, int peer, int gid, int own, int sends_from, int receives_from)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	int bad = ibv_modify_qp(qps[qp], &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);

	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer, .rq_psn = receives_from,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = own, .dgid.raw = {[0] = 0xfe, [1] = 0x80, [15] = gid}}}};
	bad |= ibv_modify_qp(qps[qp], &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = sends_from};
	return bad | ibv_modify_qp(qps[qp], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static int reset(int qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	return ibv_modify_qp(qps[qp], &attr, IBV_QP_STATE);
}

static int poll_once(int most)
{
	struct ibv_wc wc[256];

	return ibv_poll_cq(&cq, most, wc);
}

/* Makes, uses and destroys so many QPs, one after the other, with so many requests of 10 bytes each. */
static int churn(int count, int requests)
{
	int bad = 0;

	for (int i = 0; i < count; i++) {
		bad |= create(BEFORE, 0, IBV_QPT_RC, 0) < 0 || join(BEFORE, IBV_MTU_1024, 5, 2, 1, 0, 0) ||
		       post(BEFORE, requests, IBV_WR_SEND, 1, 10, 1, 0) || receive(BEFORE, 1, 0);
		complete(requests, 0);
		bad |= poll_once(requests) != requests || ibv_destroy_qp(qps[BEFORE]);
	}
	return bad;
}

static void *post_one(void *wr)
{
	struct ibv_send_wr *bad;

	ibv_post_send(qps[BEFORE], wr, &bad);
	return NULL;
}

/* For SIGUSR1, which ends a delayed call. */
static void wake(int signal)
{
}

static sigjmp_buf outside;
static void leave(int signal)
{
	siglongjmp(outside, signal);
}

/* Posts so many requests in a call that never returns: it is left at SIGALRM. */
static int abandon(int qp, int count)
{
	signal(SIGALRM, leave);
	delay(600000000);
	if (!sigsetjmp(outside, 1)) {
		post(qp, count, IBV_WR_RDMA_WRITE, 1, 1, 1, 0);
		return -1;
	}
	delay(0);
	return 0;
}

/* Two threads post a SEND each on one QP, in calls that last until SIGUSR1. */
static int together(void)
{
	static struct ibv_send_wr wrs[2] = {
		{.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
		{.wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}};
	pthread_t other;

	signal(SIGUSR1, wake);
	delay(600000000);
	pthread_create(&other, NULL, post_one, &wrs[0]);
	post_one(&wrs[1]);
	while (pthread_tryjoin_np(other, NULL)) {
		pthread_kill(other, SIGUSR1);
		usleep(1000);
	}
	delay(0);
	return 0;
}

static void *post_slowly(void *qp)
{
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

	ibv_post_send(qp, &wr, &bad);
	return NULL;
}

/* So many threads are in a call that posts until the process ends. */
static int crowd(int qp, int threads)
{
	pthread_t id;
	int bad = 0;

	delay(600000000);
	for (int i = 0; i < threads; i++)
		bad |= pthread_create(&id, NULL, post_slowly, qps[qp]);
	return bad;
}

static volatile int polling, polled;
static void *poll_on(void *unused)
{
	(void)unused;
	while (polling)
		__sync_fetch_and_add(&polled, poll_once(1));
	return NULL;
}

/* So many threads poll one completion queue while requests are posted and complete; the completions they saw. */
static int compete(int threads, int requests, int same)
{
	pthread_t ids[16];

	polling = 1;
	polled = 0;
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, poll_on, NULL);
	for (int i = 0; i < requests; i += 10) {
		post(BEFORE, 10, IBV_WR_RDMA_WRITE, 1, 10, 1, same);
		complete(10, 0);
		usleep(100);
	}
	for (int i = 0; i < 60000 && polled < requests; i++)
		usleep(1000);
	polling = 0;
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	return polled;
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

/* Posts one request of 1000 bytes at a time for so many milliseconds, with so many turns of a loop and a pause of so many
 * microseconds before each; with 1 it receives, with 2 and 3 it does both by functions that nothing probes. Calls. */
static int storm(int qp, long ms, long turns, int what, long pause)
{
	struct ibv_sge sge = {.length = 1000};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
	struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *refused;
	struct timespec begin, now;
	int calls = 0, failed = 0;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		for (volatile long turn = 0; turn < turns; turn++)
			;
		if (pause)
			usleep(pause);
		if (what == 1)
			failed |= ibv_post_recv(qps[qp], &receive, &refused);
		else if (what == 2)
			failed |= post_bare(qps[qp], &wr, &bad);
		else if (what == 3)
			failed |= receive_bare(qps[qp], &receive, &refused);
		else
			failed |= ibv_post_send(qps[qp], &wr, &bad);
		if (++calls % 1024 == 0) { /* they are not signaled: a poll takes them and returns none */
			complete(1024, 0);
			poll_once(1);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < ms);
	return failed ? -1 : calls;
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

/* The same by the extended calls. */
static int idle_extended(long polls)
{
	for (long i = 0; i < polls; i++)
		poll_extended(1, 0);
	return 0;
}

static int hostile(int kind)
{
	static struct ibv_send_wr wr;
	struct ibv_send_wr *bad;
	struct ibv_sge *nowhere = (void *)8;

	wr = (struct ibv_send_wr){.opcode = IBV_WR_SEND, .num_sge = 1, .sg_list = nowhere};
	if (kind == 0) /* segments that are not there */
		return ibv_post_send(qps[0], &wr, &bad);
	refuse_after(0);
	if (kind == 1) /* a chain that is a circle */
		wr.next = &wr;
	if (kind == 2)
		wr.num_sge = -2147483647 - 1;
	return ibv_post_send(qps[0], kind == 3 ? (void *)8 : &wr, &bad);
}

/* Exchanges post_send in the context, where the exporter looks for it; -1 puts it back. Nothing is posted meanwhile. */
static int forge(int kind)
{
	static int (*own)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	void *others[] = {(void *)cq.context->ops.poll_cq, (void *)memcpy, (void *)8, NULL};

	if (!own)
		own = cq.context->ops.post_send;
	cq.context->ops.post_send = own;
	if (kind >= 0 && kind < 4)
		cq.context->ops.post_send = others[kind];
	if (kind >= 4)
		cq.context->ops.post_send = (void *)((char *)own + kind);
	return 0;
}

/* Lets a call of a queue pair point to the function of another; from -1: to no function's beginning. */
static int mislead(int qp, int call, int from)
{
	void **calls = (void **)&((struct ibv_qp_ex *)qps[qp])->wr_atomic_cmp_swp;

	calls[call] = from < 0 ? (char *)calls[call] + 1 : calls[from];
	return 0;
}

/* An all-reduce of this rank, through the NCCL of the second argument; the first call makes the communicator. */
static int reduce_all(int rank, int ranks)
{
	static int (*reduce)(const void *, void *, size_t, int, int, void *, void *);
	static void *comm;
	struct id {
		char internal[128];
	} id = {"verbs_job"};

	if (!reduce) {
		void *nccl = dlopen(nccl_path, RTLD_NOW);
		int (*init)(void **, int, struct id, int) = nccl ? dlsym(nccl, "ncclCommInitRank") : NULL;

		if (!init || init(&comm, ranks, id, rank))
			return -1;
		reduce = dlsym(nccl, "ncclAllReduce");
	}
	return reduce(NULL, NULL, 1024, 7, 0, comm, NULL);
}

static int step(const char *line)
{
	char what[16];
	long a[7] = {0};

	if (sscanf(line, "%15s %ld %ld %ld %ld %ld %ld %ld", what, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6) < 1)
		return -1;
	if (!strcmp(what, "post"))
		return post(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	if (!strcmp(what, "mix"))
		return mix(a[0], a[1], a + 2);
	if (!strcmp(what, "abandon"))
		return abandon(a[0], a[1]);
	if (!strcmp(what, "delay"))
		return signal(SIGUSR1, wake), delay(a[0]), 0;
	if (!strcmp(what, "build"))
		return build_all(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	if (!strcmp(what, "mislead"))
		return mislead(a[0], a[1], a[2]);
	if (!strcmp(what, "extend"))
		return extend(&completions.ex), 0;
	if (!strcmp(what, "pollex"))
		return poll_extended(a[0], a[1]);
	if (!strcmp(what, "receive"))
		return receive(a[0], a[1], a[2]);
	if (!strcmp(what, "create"))
		return create(a[0], a[1], a[2], a[3]);
	if (!strcmp(what, "connect"))
		return join(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	if (!strcmp(what, "reset"))
		return reset(a[0]);
	if (!strcmp(what, "destroy"))
		return ibv_destroy_qp(qps[a[0]]);
	if (!strcmp(what, "number"))
		return next_number(a[0]), 0;
	if (!strcmp(what, "arrive"))
		return arrive(qps[a[0]]->qp_num, a[1]), 0;
	if (!strcmp(what, "churn"))
		return churn(a[0], a[1]);
	if (!strcmp(what, "together"))
		return together();
	if (!strcmp(what, "crowd"))
		return crowd(a[0], a[1]);
	if (!strcmp(what, "compete"))
		return compete(a[0], a[1], a[2]);
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
	if (!strcmp(what, "storm"))
		return storm(a[0], a[1], a[2], a[3], a[4]);
	if (!strcmp(what, "idle"))
		return idle(a[0]);
	if (!strcmp(what, "idlex"))
		return idle_extended(a[0]);
	if (!strcmp(what, "modify"))
		return ibv_modify_qp(qps[a[0]], &(struct ibv_qp_attr){0}, 0);
	if (!strcmp(what, "forge"))
		return forge(a[0]);
	if (!strcmp(what, "reduce"))
		return reduce_all(a[0], a[1]);
	if (!strcmp(what, "hostile"))
		return hostile(a[0]);
	return -1;
}

int main(int count, char **arguments)
{
	void *provider = dlopen(count > 1 ? arguments[1] : NULL, RTLD_NOW); /* NULL: linked into this program */
	struct ibv_context *(*opened)(void);
	char line[128];

	if (!provider)
		return fprintf(stderr, "cannot load the provider: %s\n", dlerror()), 1;
	nccl_path = count > 2 ? arguments[2] : NULL;
	opened = (struct ibv_context * (*)(void)) dlsym(provider, "standin_open");
	complete = (void (*)(unsigned, int))dlsym(provider, "standin_complete");
	refuse_after = (void (*)(int))dlsym(provider, "standin_refuse_after");
	arrive = (void (*)(unsigned, unsigned))dlsym(provider, "standin_arrive");
	next_number = (void (*)(unsigned))dlsym(provider, "standin_next_number");
	extend = (void (*)(struct ibv_cq_ex *))dlsym(provider, "standin_extend");
	delay = (void (*)(unsigned))dlsym(provider, "standin_delay");
	*(void **)&post_bare = dlsym(provider, "standin_post_bare");
	*(void **)&receive_bare = dlsym(provider, "standin_receive_bare");
	pd.context = cq.context = opened();
	for (int i = 0; i < BEFORE; i++) {
		before[i] = (struct ibv_qp){
			.context = cq.context, .send_cq = &cq, .recv_cq = &cq, .qp_num = 100 + i, .qp_type = IBV_QPT_RC};
		qps[i] = &before[i];
	}
	while (fgets(line, sizeof(line), stdin)) {
		printf("%d\n", step(line));
		fflush(stdout);
	}
	return 0;
}
