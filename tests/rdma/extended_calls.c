/* Two ends of a reliable connection within one process, which uses the extended calls alone: ibv_wr_start to
 * ibv_wr_complete, and ibv_start_poll to ibv_end_poll.
 *
 *   extended_calls DEVICE GID_INDEX
 *
 * Until there is a line to read it polls for nothing, then it posts: 20 SENDs of one segment, 10 of 60 bytes of inline
 * data, 30 RDMA_WRITEs of two segments of which each third is signaled, 5 SENDs that it aborts. It prints how many
 * completions there were.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <unistd.h>
#include "device.h"

enum { MOST = 128, BYTES = 1000, INLINE = 60 };

static struct ibv_qp *create(struct ibv_context *device, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = {.max_send_wr = MOST, .max_recv_wr = MOST, .max_send_sge = 2, .max_recv_sge = 1,
			.max_inline_data = INLINE},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(device, &attr);

	need(qp != NULL, "queue pair");
	return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "init");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1,
			    .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}}};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "rtr");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 1};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "rts");
}

static void await(struct ibv_cq_ex *cq, int wanted)
{
	struct ibv_poll_cq_attr attr = {0};
	int statuses[2] = {0}, receives = 0, end;

	while (statuses[0] + statuses[1] < wanted) {
		if (ibv_start_poll(cq, &attr)) {
			usleep(1000);
			continue;
		}
		do {
			statuses[cq->status != IBV_WC_SUCCESS]++;
			receives += ibv_wc_read_opcode(cq) == IBV_WC_RECV;
			need(ibv_wc_read_qp_num(cq) != 0, "number");
			end = ibv_next_poll(cq);
		} while (!end);
		ibv_end_poll(cq);
	}
	printf("%d %d %d\n", statuses[0], statuses[1], receives);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	struct ibv_context *device = open_device(argv[1]);

	need(device != NULL, "device");
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq_init_attr_ex wanted = {.cqe = 4 * MOST, .wc_flags = IBV_WC_EX_WITH_QP_NUM};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(device, &wanted);
	char *memory = calloc(2, BYTES);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	int gid_index = atoi(argv[2]);
	union ibv_gid gid;

	need(cq && mr && !ibv_query_gid(device, 1, gid_index, &gid), "completion queue");
	struct ibv_qp *a = create(device, pd, ibv_cq_ex_to_cq(cq)), *b = create(device, pd, ibv_cq_ex_to_cq(cq));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);

	connect_qp(a, b->qp_num, gid, gid_index);
	connect_qp(b, a->qp_num, gid, gid_index);
	struct ibv_sge sges[2] = {{.addr = (uintptr_t)memory, .length = BYTES / 2, .lkey = mr->lkey},
				  {.addr = (uintptr_t)memory + BYTES / 2, .length = BYTES / 2, .lkey = mr->lkey}};
	struct ibv_sge buffer = {.addr = (uintptr_t)memory + BYTES, .length = BYTES, .lkey = mr->lkey};
	struct ibv_recv_wr receive = {.sg_list = &buffer, .num_sge = 1}, *bad;

	for (int n = 0; n < 30; n++)
		need(!ibv_post_recv(b, &receive, &bad), "post_recv");
	struct ibv_poll_cq_attr nothing = {0};
	struct pollfd line = {.fd = STDIN_FILENO, .events = POLLIN};

	while (!poll(&line, 1, 100))
		need(ibv_start_poll(cq, &nothing) == ENOENT, "empty queue");
	for (int n = 0; n < 30; n++) {
		ibv_wr_start(qp);
		qp->wr_id = n;
		qp->wr_flags = IBV_SEND_SIGNALED | (n < 20 ? 0 : IBV_SEND_INLINE);
		ibv_wr_send(qp);
		if (n < 20)
			ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, BYTES);
		else
			ibv_wr_set_inline_data(qp, memory, INLINE);
		need(!ibv_wr_complete(qp), "send");
	}
	ibv_wr_start(qp);
	for (int n = 0; n < 30; n++) {
		qp->wr_id = 1000 + n;
		qp->wr_flags = n % 3 == 2 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + BYTES);
		ibv_wr_set_sge_list(qp, 2, sges);
	}
	need(!ibv_wr_complete(qp), "write");
	ibv_wr_start(qp);
	for (int n = 0; n < 5; n++) {
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, BYTES);
	}
	ibv_wr_abort(qp);
	await(cq, 30 + 30 + 10);
	return 0;
}
