/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Requests of io_uring on sockets of followed processes: which one moves bytes, and where these are. */
#pragma once
#include "connections.h"

#define MOST_RING_THREADS 16384
#define MOST_RING_SOCKETS 8192 /* and more where there are many processors */
#define IO_URING_ENTER 426     /* on all architectures */
#define FIXED_FILE 1	       /* IOSQE_FIXED_FILE: of a table of the ring's */
#define PF_IO_WORKER 0x10      /* a thread of the kernel's in the process; its registers are of no call */

/* Operations (enum io_uring_op), those that read and write as files do first. */
enum {
	RING_READV = 1,
	RING_WRITEV = 2,
	RING_READ_FIXED = 4,
	RING_WRITE_FIXED = 5,
	RING_READ = 22,
	RING_WRITE = 23
};
enum {
	RING_SENDMSG = 9,
	RING_RECVMSG = 10,
	RING_SEND = 26,
	RING_RECV = 27,
	RING_SEND_ZC = 47,
	RING_SENDMSG_ZC = 48
};
#define BIT(operation) (1ull << (operation))
#define READS_AS_FILE (BIT(RING_READV) | BIT(RING_READ_FIXED) | BIT(RING_READ))
#define WRITES_AS_FILE (BIT(RING_WRITEV) | BIT(RING_WRITE_FIXED) | BIT(RING_WRITE))
#define READS (READS_AS_FILE | BIT(RING_RECVMSG) | BIT(RING_RECV))
#define WRITES                                                                                               \
	(WRITES_AS_FILE | BIT(RING_SENDMSG) | BIT(RING_SEND) | BIT(RING_SEND_ZC) | BIT(RING_SENDMSG_ZC))
#define IS_ONE_OF(operation, operations) ((operation) < 64 && (operations) >> (operation)&1)

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded" /* the layouts are the kernel's, not these */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
enum iter_type { ITER_UBUF, ITER_IOVEC };
struct iov_iter {
	__u8 iter_type;
	unsigned long iov_offset;
	void *ubuf;
	void *__iov;
};
struct msghdr {
	struct iov_iter msg_iter;
};
struct iou_vec {
	void *iovec;
};
struct io_async_msghdr {
	struct iou_vec vec; /* since Linux 6.15 */
	void *free_iov;	    /* before */
	int free_iov_nr;
	struct msghdr msg;
};
struct io_async_rw {
	struct iov_iter iter;
};
struct io_sr_msg { /* the beginning of a struct io_kiocb, */
	unsigned int done_io;
};
struct io_rw { /* and this */
	__u64 addr;
};
struct io_cqe {
	int fd;
};
struct io_kiocb {
	struct file *file;
	__u8 opcode;
	unsigned int flags;
	struct io_cqe cqe;
	void *async_data;
};
#pragma clang attribute pop
#pragma clang diagnostic pop

/* The request that each thread has begun last. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_RING_THREADS);
	__type(key, __u64);
	__type(value, __u64);
} ring_threads SEC(".maps");
__u64 ring_threads_lost = 0, ring_threads_full_tick = 0;
/* The one that waits for each socket, by its address, and by that with the lowest bit those that send. */
MAP(ring_sockets, LRU_HASH, __u64, __u64, MOST_RING_SOCKETS);
/* Whether requests are followed: only once a followed process has used io_uring. */
MAP(ring_used, ARRAY, __u32, __u32, 1);
/* Calls by io_uring that moved bytes before. */
__u64 ring_calls_unread = 0;

static __always_inline bool uses_rings(void)
{
	__u32 zero = 0, *used = bpf_map_lookup_elem(&ring_used, &zero);

	return used && *used;
}

/* Whether this process is followed and a request moves bytes of sockets. */
static __always_inline bool is_ring_call(struct io_kiocb *request, __u8 *operation)
{
	if (!may_be_followed(bpf_get_current_pid_tgid() >> 32))
		return false;
	*operation = BPF_CORE_READ(request, opcode);
	return IS_ONE_OF(*operation, READS | WRITES);
}

/* A thread begins a request. */
static __always_inline void begin_ring_call(struct io_kiocb *request)
{
	__u64 id = bpf_get_current_pid_tgid(), value = (__u64)request, *row;
	__u8 operation;

	if (!is_ring_call(request, &operation))
		return;
	row = lookup_or_init(ring_threads, &id, &value);
	if (row)
		*row = value;
}

/* The socket that a file is of, if it is of one; else what is no socket's address. */
static __always_inline struct sock *socket_of(struct file *file)
{
	struct socket *socket = BPF_CORE_READ(file, private_data);

	return BPF_CORE_READ(socket, sk);
}

/* The same of a file descriptor. */
static __always_inline struct sock *socket_at(struct task_struct *task, __u32 descriptor)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL;

	if (descriptor < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + descriptor);
	return socket_of(file);
}

/* A request is to be continued once its socket is ready, or in a thread of the kernel's. */
static __always_inline void put_off_ring_call(struct io_kiocb *request)
{
	__u64 value = (__u64)request, key;
	struct file *file;
	__u8 operation;

	if (!is_ring_call(request, &operation))
		return;
	file = BPF_CORE_READ(request, file);
	if (file)
		key = (__u64)socket_of(file);
	else if (BPF_CORE_READ(request, flags) & FIXED_FILE)
		return;
	else /* it has not looked for its file */
		key = (__u64)socket_at(bpf_get_current_task_btf(), BPF_CORE_READ(request, cqe.fd));
	key |= IS_ONE_OF(operation, WRITES);
	bpf_map_update_elem(&ring_sockets, &key, &value, BPF_ANY);
}

static __always_inline bool moves(struct io_kiocb *request, struct sock *sk, bool sends)
{
	__u8 operation = BPF_CORE_READ(request, opcode);

	return IS_ONE_OF(operation, sends ? WRITES : READS) && socket_of(BPF_CORE_READ(request, file)) == sk;
}

/* The request that moves bytes of a socket just now in this thread; NULL if it is not known. */
static __always_inline struct io_kiocb *ring_request(struct sock *sk, bool sends)
{
	__u64 id = bpf_get_current_pid_tgid(), key = (__u64)sk | sends, *row;

	row = bpf_map_lookup_elem(&ring_threads, &id);
	if (row && moves((struct io_kiocb *)*row, sk, sends))
		return (struct io_kiocb *)*row;
	row = bpf_map_lookup_elem(&ring_sockets, &key);
	if (row && moves((struct io_kiocb *)*row, sk, sends))
		return (struct io_kiocb *)*row;
	return NULL;
}

/* Where the bytes are that a call moved: in one buffer, or in pieces after some bytes of these, with their list in user space
 * or in the kernel. */
struct place {
	__u64 base;
	__u64 iov;
	__u32 skipped;
	__u16 in_kernel;
	__u16 moved; /* messages of a call with several; else 0 */
};

/* Since Linux 6.10 each request has memory with the rest of its bytes from its beginning on. */
static __always_inline bool keeps_bytes(void)
{
	return bpf_core_field_exists(((struct io_async_msghdr *)0)->vec) ||
	       bpf_core_field_exists(((struct io_async_msghdr *)0)->free_iov_nr);
}

/* The list of pieces with which a message began. */
static __always_inline __u64 pieces_of(struct io_async_msghdr *message)
{
	if (bpf_core_field_exists(message->vec))
		return (__u64)BPF_CORE_READ(message, vec.iovec);
	return (__u64)BPF_CORE_READ(message, free_iov);
}

/* Finds the bytes of a socket that a request has just moved. False where that is not known. */
static __always_inline bool find_ring_bytes(struct sock *sk, __u32 size, bool sends, struct place *place)
{
	struct io_kiocb *request = ring_request(sk, sends);
	void *data = BPF_CORE_READ(request, async_data);
	__u8 operation = BPF_CORE_READ(request, opcode), kind;
	bool as_file = IS_ONE_OF(operation, READS_AS_FILE | WRITES_AS_FILE);
	struct iov_iter *rest;

	if (operation == RING_READ_FIXED || operation == RING_WRITE_FIXED) {
		place->base = BPF_CORE_READ((struct io_rw *)request, addr);
		return true;
	}
	if (!data || !keeps_bytes())
		return false;
	rest =
	    as_file ? &((struct io_async_rw *)data)->iter : &((struct io_async_msghdr *)data)->msg.msg_iter;
	kind = BPF_CORE_READ(rest, iter_type);
	if (kind == bpf_core_enum_value(enum iter_type, ITER_UBUF)) {
		place->base = (__u64)BPF_CORE_READ(rest, ubuf) + BPF_CORE_READ(rest, iov_offset);
		if (!as_file) /* the socket has this rest, and of a file's a copy */
			place->base -= size;
		return true;
	}
	if (kind != bpf_core_enum_value(enum iter_type, ITER_IOVEC))
		return false;
	place->in_kernel = true;
	if (as_file) {
		place->iov = (__u64)BPF_CORE_READ(rest, __iov);
		return true;
	}
	place->iov = pieces_of(data);
	place->skipped = BPF_CORE_READ((struct io_sr_msg *)request, done_io);
	return operation == RING_SENDMSG || operation == RING_RECVMSG || operation == RING_SENDMSG_ZC ||
	       !place->skipped; /* others have another list for what is left */
}
