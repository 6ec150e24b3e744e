/* A server of one connection that reads and writes by io_uring alone: `serving_rings KIND SETUP [async|registered]`.
 *
 * KIND is read, fixed, readv, recv, recvmsg, selected or zerocopy; SETUP are the flags of io_uring_setup(2) as a number. It prints its
 * port, takes the number of parts of an answer and the parts from standard input, each after its length, and answers each
 * request that it has read with them, one write each. */
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(call)                                                                                          \
	({                                                                                                   \
		long result_ = (long)(call);                                                                 \
		if (result_ < 0) {                                                                           \
			perror(#call);                                                                       \
			exit(1);                                                                             \
		}                                                                                            \
		result_;                                                                                     \
	})
#define ENTRIES 8
#define BUFFERS 4
#define SIZE 65536

enum { READING = 1, WRITING };

struct done {
	int res;
	unsigned flags;
};

static struct io_uring_params params;
static struct io_uring_sqe *sqes;
static struct io_uring_buf_ring *buffers;
static char *sq, *cq, memory[BUFFERS][SIZE];
static int ring, client;
static const char *kind;
static unsigned char flags;

static unsigned *at(char *map, unsigned offset)
{
	return (unsigned *)(map + offset);
}

static void set_up(unsigned how)
{
	struct io_uring_buf_reg reg = {.ring_entries = BUFFERS};
	struct iovec all_memory = {memory, sizeof(memory)};
	const int all = PROT_READ | PROT_WRITE;

	params.flags = how;
	ring = CHECK(syscall(SYS_io_uring_setup, ENTRIES, &params));
	sq = (char *)CHECK(mmap(NULL, params.sq_off.array + params.sq_entries * 4, all, MAP_SHARED, ring, IORING_OFF_SQ_RING));
	cq = (char *)CHECK(mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), all, MAP_SHARED,
				ring, IORING_OFF_CQ_RING));
	sqes = (void *)CHECK(mmap(NULL, params.sq_entries * sizeof(*sqes), all, MAP_SHARED, ring, IORING_OFF_SQES));
	buffers = (void *)CHECK(mmap(NULL, 4096, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	reg.ring_addr = (unsigned long)buffers;
	CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_PBUF_RING, &reg, 1));
	CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &all_memory, 1));
	CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &client, 1));
}

static void give_buffer(unsigned id)
{
	struct io_uring_buf *buffer = &buffers->bufs[buffers->tail & (BUFFERS - 1)];

	buffer->addr = (unsigned long)memory[id];
	buffer->len = SIZE;
	buffer->bid = id;
	__atomic_store_n(&buffers->tail, buffers->tail + 1, __ATOMIC_RELEASE);
}

static void submit(struct io_uring_sqe request)
{
	unsigned tail = *at(sq, params.sq_off.tail), slot = tail & *at(sq, params.sq_off.ring_mask);

	request.fd = flags & IOSQE_FIXED_FILE ? 0 : client;
	request.flags |= flags;
	sqes[slot] = request;
	at(sq, params.sq_off.array)[slot] = slot;
	__atomic_store_n(at(sq, params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0));
}

/* The next completion. */
static struct done wait_for(unsigned what)
{
	unsigned head = *at(cq, params.cq_off.head);
	struct io_uring_cqe *done;
	struct done found;

	while (__atomic_load_n(at(cq, params.cq_off.tail), __ATOMIC_ACQUIRE) == head)
		CHECK(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
	done = (struct io_uring_cqe *)(cq + params.cq_off.cqes) + (head & *at(cq, params.cq_off.ring_mask));
	found = (struct done){done->res, done->flags};
	if (done->user_data != what || done->res < 0) {
		fprintf(stderr, "%llu gave %d\n", (unsigned long long)done->user_data, done->res);
		exit(1);
	}
	__atomic_store_n(at(cq, params.cq_off.head), head + 1, __ATOMIC_RELEASE);
	return found;
}

/* Bytes in two pieces. */
static struct msghdr *pieces(char *bytes, size_t size)
{
	static struct iovec list[2];
	static struct msghdr message = {.msg_iov = list, .msg_iovlen = 2};

	list[0] = (struct iovec){bytes, size < 7 ? size : 7};
	list[1] = (struct iovec){bytes + list[0].iov_len, size - list[0].iov_len};
	return &message;
}

static struct io_uring_sqe moving(char *bytes, size_t size, int single, int listed, int message)
{
	struct io_uring_sqe request = {.addr = (unsigned long)bytes, .len = size, .opcode = single};

	if (!strcmp(kind, "readv")) {
		request.opcode = listed;
		request.addr = (unsigned long)pieces(bytes, size)->msg_iov;
		request.len = 2;
	} else if (!strcmp(kind, "recvmsg")) {
		request.opcode = message;
		request.addr = (unsigned long)pieces(bytes, size);
		request.len = 1;
	}
	return request;
}

static int receive(void)
{
	int single = !strcmp(kind, "read")    ? IORING_OP_READ
		     : !strcmp(kind, "fixed") ? IORING_OP_READ_FIXED
					      : IORING_OP_RECV;
	struct io_uring_sqe request;
	static int armed;
	struct done done;

	if (strcmp(kind, "selected")) {
		request = moving(memory[0], SIZE, single, IORING_OP_READV, IORING_OP_RECVMSG);
		request.user_data = READING;
		submit(request);
		return wait_for(READING).res;
	}
	if (!armed)
		submit((struct io_uring_sqe){.opcode = IORING_OP_RECV,
					     .flags = IOSQE_BUFFER_SELECT,
					     .ioprio = IORING_RECV_MULTISHOT,
					     .user_data = READING});
	done = wait_for(READING);
	armed = done.flags & IORING_CQE_F_MORE;
	if (done.flags & IORING_CQE_F_BUFFER)
		give_buffer(done.flags >> IORING_CQE_BUFFER_SHIFT);
	return done.res;
}

/* Sends a part: with MSG_WAITALL all of it by one request, which the kernel tries again and again. */
static void send_part(char *bytes, size_t size)
{
	int single = !strcmp(kind, "zerocopy") ? IORING_OP_SEND_ZC
		     : !strcmp(kind, "read")   ? IORING_OP_WRITE
		     : !strcmp(kind, "fixed")  ? IORING_OP_WRITE_FIXED
					       : IORING_OP_SEND;
	struct io_uring_sqe request;
	struct done done;

	while (size) {
		request = moving(bytes, size, single, IORING_OP_WRITEV, IORING_OP_SENDMSG);
		if (single == IORING_OP_WRITE_FIXED) {
			request.len = size < SIZE ? size : SIZE;
			request.addr = (unsigned long)memcpy(memory[1], bytes, request.len);
		}
		request.user_data = WRITING;
		if (single == IORING_OP_SEND && strcmp(kind, "readv"))
			request.msg_flags = MSG_WAITALL;
		submit(request);
		done = wait_for(WRITING);
		if (done.flags & IORING_CQE_F_MORE)
			wait_for(WRITING); /* the bytes are not needed any more */
		bytes += done.res;
		size -= done.res;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int listening = CHECK(socket(AF_INET, SOCK_STREAM, 0));
	unsigned count, sizes[64];
	char *parts[64];

	kind = argv[1];
	flags = argc <= 3 ? 0 : !strcmp(argv[3], "async") ? IOSQE_ASYNC : IOSQE_FIXED_FILE;
	CHECK(bind(listening, (struct sockaddr *)&address, size));
	CHECK(listen(listening, 1));
	CHECK(getsockname(listening, (struct sockaddr *)&address, &size));
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	if (fread(&count, 4, 1, stdin) != 1 || count > 64)
		return 1;
	for (unsigned i = 0; i < count; i++) {
		if (fread(&sizes[i], 4, 1, stdin) != 1)
			return 1;
		parts[i] = malloc(sizes[i]);
		if (fread(parts[i], 1, sizes[i], stdin) != sizes[i])
			return 1;
	}
	client = CHECK(accept(listening, NULL, NULL));
	set_up(strtoul(argv[2], NULL, 0));
	for (unsigned id = 0; id < BUFFERS; id++)
		give_buffer(id);
	while (receive() > 0)
		for (unsigned i = 0; i < count; i++)
			send_part(parts[i], sizes[i]);
	return 0;
}
