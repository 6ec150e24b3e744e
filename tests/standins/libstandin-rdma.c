/* A verbs provider without a device: the real verbs_set_ops of libibverbs, so that its calls come here. Requests complete
 * when standin_complete makes them, receives when standin_arrive does, on one completion queue that is all there is.
 * Flushed, refused and failed requests are made by standin_*. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>

struct verbs_context_ops;
extern void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);

#define MEMBERS 76 /* of struct verbs_context_ops, rdma-core 36 to 58 */
#define ROOM 65536
#define QPS 64 /* numbers that are this far apart share their receives */
#define CONTEXT_AT 4096

struct request {
	struct ibv_wc wc;
	int signaled;
};
static struct request queue[ROOM];
static unsigned posted, completed, polled;
static struct {
	uint64_t wr_ids[1024];
	unsigned posted, arrived;
} receives[QPS];
static struct ibv_wc arrivals[ROOM];
static unsigned arrived, taken;
static unsigned next_number = 200;
static int refuse_after = -1;
static unsigned delay;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int unused(void)
{
	return 0;
}

static int refused(void)
{
	int now = !refuse_after;

	refuse_after -= refuse_after > 0;
	return now;
}

/* A QP's `handle` is set if all its requests are signaled. */
static inline __attribute__((always_inline)) int post_all(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int error = 0;

	if (delay)
		usleep(delay);
	pthread_mutex_lock(&lock);
	for (; wr; wr = wr->next) {
		struct request *request = &queue[posted % ROOM];

		if (refused() || posted - polled >= ROOM) {
			*bad = wr;
			error = ENOMEM;
			break;
		}
		memset(request, 0, sizeof(*request));
		request->wc.wr_id = wr->wr_id;
		request->wc.qp_num = qp->qp_num;
		request->signaled = qp->handle || wr->send_flags & IBV_SEND_SIGNALED;
		posted++;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static __attribute__((noinline)) int standin_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return post_all(qp, wr, bad);
}

/* The same, where nothing probes it: no object points to it. */
__attribute__((noinline)) int standin_post_bare(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int error = post_all(qp, wr, bad);

	__asm__ volatile("" ::: "memory"); /* or a compiler makes both functions one */
	return error;
}

static inline __attribute__((always_inline)) int receive_all(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	for (; wr; wr = wr->next) {
		if (refused()) {
			*bad = wr;
			error = ENOMEM;
			break;
		}
		receives[qp->qp_num % QPS].wr_ids[receives[qp->qp_num % QPS].posted++ % 1024] = wr->wr_id;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static __attribute__((noinline)) int standin_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receive_all(qp, wr, bad);
}

__attribute__((noinline)) int standin_receive_bare(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error = receive_all(qp, wr, bad);

	__asm__ volatile("" ::: "memory");
	return error;
}

static __attribute__((noinline)) int take(int most, struct ibv_wc *wc)
{
	int n = 0;

	pthread_mutex_lock(&lock);
	for (; n < most && polled != completed; polled++) {
		if (queue[polled % ROOM].signaled || queue[polled % ROOM].wc.status)
			wc[n++] = queue[polled % ROOM].wc;
	}
	while (n < most && taken != arrived)
		wc[n++] = arrivals[taken++ % ROOM];
	pthread_mutex_unlock(&lock);
	return n;
}

static __attribute__((noinline)) int standin_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	(void)cq;
	return take(most, wc);
}

/* What a QP had outstanding goes without a completion. */
static void drop(unsigned number)
{
	pthread_mutex_lock(&lock);
	for (unsigned at = polled; at != posted; at++)
		if (queue[at % ROOM].wc.qp_num == number)
			queue[at % ROOM].signaled = queue[at % ROOM].wc.status = 0;
	receives[number % QPS].posted = receives[number % QPS].arrived = 0;
	pthread_mutex_unlock(&lock);
}

static struct ibv_qp *standin_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
	struct ibv_qp *qp = refused() ? NULL : calloc(1, sizeof(struct ibv_qp_ex));

	if (!qp)
		return NULL;
	qp->context = pd->context;
	qp->pd = pd;
	qp->send_cq = attributes->send_cq;
	qp->recv_cq = attributes->recv_cq;
	qp->qp_type = attributes->qp_type;
	qp->handle = attributes->sq_sig_all;
	qp->qp_num = next_number++;
	return qp;
}

/* The extended calls. What is begun is behind what is posted; a request that is refused makes wr_complete fail. */
static unsigned begun;
static int failed;

static void standin_wr_start(struct ibv_qp_ex *qp)
{
	(void)qp;
	pthread_mutex_lock(&lock);
	begun = failed = 0;
}

static void begin(struct ibv_qp_ex *qp)
{
	struct request *request = &queue[(posted + begun) % ROOM];

	failed |= refused();
	memset(request, 0, sizeof(*request));
	request->wc.wr_id = qp->wr_id;
	request->wc.qp_num = qp->qp_base.qp_num;
	request->signaled = qp->qp_base.handle || qp->wr_flags & IBV_SEND_SIGNALED;
	begun++;
}

/* Different code for each, or they may become one function. */
#define BUILDER(name, opcode_, ...)                                                                          \
	static void standin_##name(struct ibv_qp_ex *qp, ##__VA_ARGS__)                                      \
	{                                                                                                    \
		begin(qp);                                                                                   \
		queue[(posted + begun - 1) % ROOM].wc.vendor_err = opcode_;                                  \
	}
BUILDER(wr_send, 2)
BUILDER(wr_send_imm, 3, __be32 data)
BUILDER(wr_rdma_read, 4, uint32_t key, uint64_t remote)
BUILDER(wr_rdma_write, 0, uint32_t key, uint64_t remote)
BUILDER(wr_local_inv, 7, uint32_t key)
BUILDER(wr_atomic_fetch_add, 6, uint32_t key, uint64_t remote, uint64_t more)
BUILDER(wr_atomic_write, 15, uint32_t key, uint64_t remote, const void *value)

static volatile uint64_t set;
static void standin_wr_set_sge(struct ibv_qp_ex *qp, uint32_t key, uint64_t address, uint32_t length)
{
	set += length;
}

static void standin_wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
	set += count;
}

static void standin_wr_set_inline_data(struct ibv_qp_ex *qp, void *address, size_t length)
{
	set -= length;
}

static void standin_wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list)
{
	set -= count;
}

static int standin_wr_complete(struct ibv_qp_ex *qp)
{
	int error = failed ? ENOMEM : 0;

	(void)qp;
	if (delay)
		usleep(delay);
	if (!error)
		posted += begun;
	pthread_mutex_unlock(&lock);
	return error;
}

static void standin_wr_abort(struct ibv_qp_ex *qp)
{
	(void)qp;
	begun = 0;
	pthread_mutex_unlock(&lock);
}

static struct ibv_wc current;
static int advance(struct ibv_cq_ex *cq)
{
	if (!take(1, &current))
		return ENOENT;
	cq->status = current.status;
	cq->wr_id = current.wr_id;
	return 0;
}

static int standin_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
	return attributes->comp_mask ? EINVAL : advance(cq);
}

static int standin_next_poll(struct ibv_cq_ex *cq)
{
	return advance(cq);
}

static void standin_end_poll(struct ibv_cq_ex *cq)
{
	cq->status = 99;
}

static enum ibv_wc_opcode standin_read_opcode(struct ibv_cq_ex *cq)
{
	return current.opcode;
}

static uint32_t standin_read_byte_len(struct ibv_cq_ex *cq)
{
	return current.byte_len;
}

static uint32_t standin_read_qp_num(struct ibv_cq_ex *cq)
{
	return current.qp_num;
}

/* Makes a completion queue one for the extended calls. */
void standin_extend(struct ibv_cq_ex *cq)
{
	cq->start_poll = standin_start_poll;
	cq->next_poll = standin_next_poll;
	cq->end_poll = standin_end_poll;
	cq->read_opcode = standin_read_opcode;
	cq->read_byte_len = standin_read_byte_len;
	cq->read_qp_num = standin_read_qp_num;
}

static void extend(struct ibv_qp_ex *qp)
{
	qp->wr_send = standin_wr_send;
	qp->wr_send_imm = standin_wr_send_imm;
	qp->wr_rdma_read = standin_wr_rdma_read;
	qp->wr_rdma_write = standin_wr_rdma_write;
	qp->wr_local_inv = standin_wr_local_inv;
	qp->wr_atomic_fetch_add = standin_wr_atomic_fetch_add;
	qp->wr_atomic_write = standin_wr_atomic_write;
	qp->wr_set_sge = standin_wr_set_sge;
	qp->wr_set_sge_list = standin_wr_set_sge_list;
	qp->wr_set_inline_data = standin_wr_set_inline_data;
	qp->wr_set_inline_data_list = standin_wr_set_inline_data_list;
	qp->wr_start = standin_wr_start;
	qp->wr_complete = standin_wr_complete;
	qp->wr_abort = standin_wr_abort;
}

static struct ibv_qp *standin_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes)
{
	struct ibv_qp *qp = standin_create_qp(attributes->pd, (struct ibv_qp_init_attr *)attributes);

	(void)context;
	if (qp && attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		extend((struct ibv_qp_ex *)qp);
	return qp;
}

static int standin_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	if (mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_RESET)
		drop(qp->qp_num);
	return 0;
}

static int standin_destroy_qp(struct ibv_qp *qp)
{
	if (refused())
		return EBUSY;
	drop(qp->qp_num);
	free(qp);
	return 0;
}

/* Lets so many requests complete with this status (enum ibv_wc_status), in the order in which they were posted. */
void standin_complete(unsigned count, int status)
{
	pthread_mutex_lock(&lock);
	for (; count && completed != posted; count--, completed++)
		queue[completed % ROOM].wc.status = status;
	pthread_mutex_unlock(&lock);
}

/* So many messages arrive at the QP with this number. */
void standin_arrive(unsigned number, unsigned count)
{
	pthread_mutex_lock(&lock);
	for (; count && receives[number % QPS].arrived != receives[number % QPS].posted; count--)
		arrivals[arrived++ % ROOM] = (struct ibv_wc){
			.wr_id = receives[number % QPS].wr_ids[receives[number % QPS].arrived++ % 1024],
			.opcode = IBV_WC_RECV,
			.byte_len = 4096,
			.qp_num = number,
		};
	pthread_mutex_unlock(&lock);
}

/* The next calls accept so many requests in all, then fail; -1 takes it back. */
void standin_refuse_after(int count)
{
	refuse_after = count;
}

/* Calls of post_send, and of wr_complete, take so many microseconds. */
void standin_delay(unsigned microseconds)
{
	delay = microseconds;
}

/* The number of the next QP; later ones count on. */
void standin_next_number(unsigned number)
{
	next_number = number;
}

#ifdef TABLE_MADE
#define AT(member) MEMBERS - 1 - (member)
#else
#define AT(member) member
#endif
#define MANDATORY(member) [AT(member)] = (void *)unused
static void *const members[MEMBERS] = {
	MANDATORY(5),
	MANDATORY(15),
	[AT(19)] = (void *)standin_create_qp,
	[AT(20)] = (void *)standin_create_qp_ex,
	MANDATORY(26),
	MANDATORY(28),
	MANDATORY(31),
	[AT(34)] = (void *)standin_destroy_qp,
	MANDATORY(40),
	[AT(47)] = (void *)standin_modify_qp,
	[AT(53)] = (void *)standin_poll_cq,
	[AT(54)] = (void *)standin_post_recv,
	[AT(55)] = (void *)standin_post_send,
	MANDATORY(58),
	MANDATORY(60),
	MANDATORY(61),
	MANDATORY(68),
	MANDATORY(69),
};

#if defined(TABLE_CHOSEN) /* which table is known only when it runs, as in hns */
static const void *volatile table = members;
#elif defined(TABLE_MADE) /* the members in another order than any release has them: put right when it runs */
static const void *table_made(void)
{
	void **made = calloc(MEMBERS, sizeof(*made));

	for (int i = 0; i < MEMBERS; i++)
		made[i] = members[MEMBERS - 1 - i];
	return made;
}
#define table table_made()
#else
#define table members
#endif

/* A device's context; the device is called standin0, or as in the environment. */
struct ibv_context *standin_open(void)
{
	static struct ibv_device device = {.name = "standin0"};
	const char *name = getenv("STANDIN_DEVICE");
	char *memory = calloc(1, 4 * CONTEXT_AT);
	struct verbs_context *context = (void *)memory;

	if (name)
		snprintf(device.name, sizeof(device.name), "%s", name);
	context->priv = (void *)(memory + CONTEXT_AT);
	context->sz = sizeof(*context);
	context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->context.device = &device;
	verbs_set_ops(context, (const void *)table);
	return &context->context;
}
