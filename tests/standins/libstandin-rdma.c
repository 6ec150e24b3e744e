/* A verbs provider without a device: the real verbs_set_ops of libibverbs, and queue pairs whose requests complete when
 * standin_complete says so. Flushed, refused and failed requests are asked for by standin_*. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

struct verbs_context_ops;
extern void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);

#define MEMBERS 76 /* of struct verbs_context_ops, rdma-core 36 to 58 */
#define ROOM 65536
#define CONTEXT_AT 4096

struct request {
	struct ibv_wc wc;
	int signaled;
};
static struct request queue[ROOM];
static unsigned posted, completed, polled;
static int refuse_after = -1;

static int unused(void)
{
	return 0;
}

static __attribute__((noinline)) int standin_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		struct request *request = &queue[posted % ROOM];

		if (!refuse_after || posted - polled >= ROOM) {
			*bad = wr;
			return ENOMEM;
		}
		refuse_after -= refuse_after > 0;
		memset(request, 0, sizeof(*request));
		request->wc.wr_id = wr->wr_id;
		request->wc.qp_num = qp->qp_num;
		request->signaled = !!(wr->send_flags & IBV_SEND_SIGNALED);
		posted++;
	}
	return 0;
}

static __attribute__((noinline)) int standin_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

static __attribute__((noinline)) int standin_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int n = 0;

	(void)cq;
	for (; n < most && polled != completed; polled++) {
		if (queue[polled % ROOM].signaled || queue[polled % ROOM].wc.status)
			wc[n++] = queue[polled % ROOM].wc;
	}
	return n;
}

/* Lets so many requests complete with this status (enum ibv_wc_status), in the order in which they were posted. */
void standin_complete(unsigned count, int status)
{
	for (; count && completed != posted; count--, completed++)
		queue[completed % ROOM].wc.status = status;
}

/* The next calls accept so many requests in all, then fail; -1 takes it back. */
void standin_refuse_after(int count)
{
	refuse_after = count;
}

#define MANDATORY(member) [member] = (void *)unused
static void *const members[MEMBERS] = {
	MANDATORY(5),  MANDATORY(15), MANDATORY(19), MANDATORY(20), MANDATORY(26), MANDATORY(28),
	MANDATORY(31), MANDATORY(34), MANDATORY(40), MANDATORY(47), MANDATORY(61), MANDATORY(60),
	MANDATORY(58), MANDATORY(68), MANDATORY(69), [53] = (void *)standin_poll_cq,
	[54] = (void *)standin_post_recv,	     [55] = (void *)standin_post_send,
};

/* A device's context; the device is called standin0. */
struct ibv_context *standin_open(void)
{
	static struct ibv_device device = {.name = "standin0"};
	char *memory = calloc(1, 4 * CONTEXT_AT);
	struct verbs_context *context = (void *)memory;

	context->priv = (void *)(memory + CONTEXT_AT);
	context->context.device = &device;
	verbs_set_ops(context, (const void *)members);
	return &context->context;
}
