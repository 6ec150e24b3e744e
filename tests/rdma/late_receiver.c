/* Two ends of a reliable connection. The receiver lets its peer wait: it posts no buffer for some seconds.
 *
 *   late_receiver DEVICE GID_INDEX SECONDS                         waits for a peer, then lets it wait
 *   late_receiver DEVICE GID_INDEX RNR_RETRIES MESSAGES ADDRESS    sends; 7 retries are endless
 *   late_receiver DEVICE GID_INDEX RNR_RETRIES MESSAGES ADDRESS PAUSE_US
 *
 * With a pause it sends one message after the other, looks for a completion after so long, and prints between which two
 * sums the time from posting to completion is, in nanoseconds of CLOCK_MONOTONIC. Otherwise the sender prints a line for each status that its completions had: its number, and how many. When some have failed it
 * stays for 15 seconds, so that its queue pair can be looked at.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <time.h>
#include <unistd.h>
#include "device.h"

enum { MOST = 256, BYTES = 1000, TCP_PORT = 7177, STATUSES = 32, RNR_TIMER = 12 /* 0.64 ms */ };

struct end {
	uint32_t qpn;
	union ibv_gid gid;
};

/* A TCP connection: to the address, or from whoever comes. */
static int meet(const char *address)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (address) {
		inet_pton(AF_INET, address, &at.sin_addr);
		for (int tries = 0; connect(fd, (void *)&at, sizeof(at)); tries++) {
			need(tries < 300, "connect");
			usleep(100000);
			close(fd);
			fd = socket(AF_INET, SOCK_STREAM, 0);
		}
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	need(!bind(fd, (void *)&at, sizeof(at)) && !listen(fd, 1), "listen");
	return accept(fd, NULL, NULL);
}

static void connect_qp(struct ibv_qp *qp, const struct end *peer, int gid_index, int rnr_retries)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "init");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = RNR_TIMER,
		.ah_attr = {.is_global = 1, .port_num = 1,
			    .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}},
	};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "rtr");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 2, /* of 0.27 s; 7 is endless in soft-RoCE */
		 .rnr_retry = rnr_retries, .max_rd_atomic = 1,
	};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "rts");
}

static void await(struct ibv_cq *cq, int wanted, int *statuses)
{
	struct ibv_wc wc;

	while (wanted) {
		int found = ibv_poll_cq(cq, 1, &wc);

		need(found >= 0, "poll");
		if (found && (int)wc.status < (int)STATUSES)
			statuses[wc.status]++;
		wanted -= found;
	}
}

static int64_t now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ll + at.tv_nsec;
}

/* One request, which somebody who watches sees posted and completed within two calls: adds what lies between the calls,
 * and what lies around them. */
static void time_one(struct ibv_qp *qp, struct ibv_send_wr *wr, int pause_us, int64_t *least, int64_t *most)
{
	int64_t before = now(), after, polled;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int found;

	need(!ibv_post_send(qp, wr, &bad), "post_send");
	after = now();
	usleep(pause_us);
	do {
		polled = now();
		found = ibv_poll_cq(qp->send_cq, 1, &wc);
	} while (!found);
	*most += now() - before;
	*least += polled - after;
	need(found == 1 && wc.status == IBV_WC_SUCCESS, "completion");
}

int main(int argc, char **argv)
{
	int times = argc == 7, sends = argc == 6 || times, statuses[STATUSES] = {0};

	if (argc != 4 && !sends)
		return 2;
	int gid_index = atoi(argv[2]), messages = sends ? atoi(argv[4]) : MOST, fd = meet(sends ? argv[5] : NULL);
	struct ibv_context *device = open_device(argv[1]);

	need(device != NULL, "device");
	struct ibv_pd *pd = ibv_alloc_pd(device);
	char *memory = calloc(1, BYTES);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(device, MOST, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = MOST, .max_recv_wr = MOST, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	need(qp && mr && messages <= MOST, "queue pair");
	struct end own = {.qpn = qp->qp_num}, peer;

	need(!ibv_query_gid(device, 1, gid_index, &own.gid), "gid");
	need(write(fd, &own, sizeof(own)) == sizeof(own) && read(fd, &peer, sizeof(peer)) == sizeof(peer), "exchange");
	connect_qp(qp, &peer, gid_index, sends ? atoi(argv[3]) : 7);
	char ready = 0;

	need(write(fd, &ready, 1) == 1 && read(fd, &ready, 1) == 1, "ready");
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = BYTES, .lkey = mr->lkey};

	if (!sends) {
		sleep(atoi(argv[3]));
		for (int n = 0; n < messages; n++) {
			struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

			need(!ibv_post_recv(qp, &wr, &bad), "post_recv");
		}
		return read(fd, &ready, 1) < 0; /* until the sender has ended */
	}
	int64_t least = 0, most = 0;

	for (int n = 0; n < messages; n++) {
		struct ibv_send_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

		if (times)
			time_one(qp, &wr, atoi(argv[6]), &least, &most);
		else
			need(!ibv_post_send(qp, &wr, &bad), "post_send");
	}
	if (times)
		return printf("%" PRId64 " %" PRId64 "\n", least, most) < 0;
	await(cq, messages, statuses);
	for (int status = 0; status < STATUSES; status++)
		if (statuses[status])
			printf("%d %d\n", status, statuses[status]);
	fflush(stdout);
	if (!statuses[IBV_WC_SUCCESS])
		sleep(15);
	return 0;
}
