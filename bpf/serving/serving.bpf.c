/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Requests that servers of HTTP/1.1 and HTTP/2 answer, from what they read from and write to their sockets. */
#include "kernel.h"
#include "sockets.h"
#include "tls.bpf.h"

#define PF_EXITING 4
/* Of calls that take no bytes of the stream. */
#define MSG_OOB 1
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000 /* what was sent, with its time */

/* What was received, after the kernel has copied it. */
SEC("raw_tp/sock_recv_length")
int on_receive(struct bpf_raw_tracepoint_args *ctx)
{
	int size = ctx->args[1], flags = ctx->args[2];

	if (size > 0 && !(flags & (MSG_OOB | MSG_PEEK | MSG_ERRQUEUE)))
		on_call((void *)ctx->args[0], size, false);
	else if (size < 0)
		messages_end((void *)ctx->args[0], false);
	if (!size || size == -ECONNRESET) /* the latter where the other side left bytes unread */
		on_unix_end((void *)ctx->args[0]);
	return 0;
}

SEC("raw_tp/sock_send_length")
int on_send(struct bpf_raw_tracepoint_args *ctx)
{
	int size = ctx->args[1];

	if (size > 0)
		on_call((void *)ctx->args[0], size, true);
	else if (size < 0)
		messages_end((void *)ctx->args[0], true);
	if (size == -EPIPE)
		on_unix_end((void *)ctx->args[0]);
	return 0;
}

/* Bytes have come to a socket of a followed server. Run at arrivals on all sockets: its fields are read without a call. */
SEC("tp_btf/sk_data_ready")
int on_data(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	__u64 key = (__u64)sk;
	bool of_tcp;

	if (!serves_tcp && !serves_unix)
		return 0;
	if (sk->__sk_common.skc_family == AF_UNIX) {
		if (serves_unix && bpf_map_lookup_elem(&connections, &key))
			note_arrival(key, false, 0);
	} else if (serves(sk->__sk_common.skc_num)) {
		of_tcp = sk->sk_protocol == IPPROTO_TCP;
		note_arrival(key, of_tcp, of_tcp ? BPF_CORE_READ((struct tcp_sock *)sk, rcv_nxt) : 0);
	}
	return 0;
}

/* Whether the client may have closed only its side, after its request: nothing that the server has sent since was refused. */
static __always_inline bool is_half_closed(struct connection *connection)
{
	return connection->client_closed == BEFORE_ANSWER && ends_with_connection(connection);
}

/* The end of a TCP connection, whichever side began it. It was missed if another one begins at the socket's address: the
 * kernel leaves out a program that was interrupted on this CPU. */
SEC("raw_tp/inet_sock_set_state")
int on_state(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct sock *sk = (void *)ctx->args[0];
	__u64 key = (__u64)sk;
	int now = ctx->args[2];
	struct connection *connection;
	enum outcome outcome;

	if (now != TCP_FIN_WAIT1 && now != TCP_CLOSE && now != TCP_CLOSE_WAIT && now != TCP_LAST_ACK &&
	    now != TCP_SYN_RECV)
		return 0;
	if (now == TCP_CLOSE || now == TCP_SYN_RECV)
		bpf_map_delete_elem(&arrivals, &key);
	connection = connection_of(&key);
	if (!connection)
		return 0;
	if (now == TCP_CLOSE_WAIT) {
		connection->client_closed = connection->answering ? DURING_ANSWER : BEFORE_ANSWER;
		return 0;
	}
	outcome = BPF_CORE_READ(task, flags) & PF_EXITING ? SERVER_GONE : UNTERMINATED;
	if (BPF_CORE_READ(sk, sk_err) ||
	    (connection->client_closed && !(outcome == UNTERMINATED && is_half_closed(connection))))
		outcome = CLIENT_GONE;
	drop(key, outcome);
	return 0;
}

/* A child of a followed process is one, too. */
SEC("raw_tp/sched_process_fork")
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (void *)ctx->args[0], *child = (void *)ctx->args[1];
	__u32 of = BPF_CORE_READ(parent, tgid), tgid = BPF_CORE_READ(child, tgid);

	if (of != tgid && bpf_map_lookup_elem(&processes, &of))
		follow(tgid);
	return 0;
}

/* A process that has ended is followed no more. Its connections are closed after this. */
SEC("raw_tp/sched_process_exit")
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[0];
	__u32 tgid = BPF_CORE_READ(task, tgid);
	__u64 id = bpf_get_current_pid_tgid();

	if (tls)
		forget_tls_thread();
	if (uses_rings())
		bpf_map_delete_elem(&ring_threads, &id);
	if (!BPF_CORE_READ(task, signal, live.counter))
		bpf_map_delete_elem(&processes, &tgid);
	return 0;
}

/* io_uring: a thread begins a request. This program and the next two are attached once a followed process has used it. */
SEC("raw_tp/io_uring_submit_req")
int on_ring_call(struct bpf_raw_tracepoint_args *ctx)
{
	begin_ring_call((void *)ctx->args[0]);
	return 0;
}

SEC("raw_tp/io_uring_poll_arm")
int on_ring_wait(struct bpf_raw_tracepoint_args *ctx)
{
	put_off_ring_call((void *)ctx->args[0]);
	return 0;
}

SEC("raw_tp/io_uring_queue_async_work")
int on_ring_worker(struct bpf_raw_tracepoint_args *ctx)
{
	put_off_ring_call((void *)ctx->args[0]);
	return 0;
}

/* Whether the kernel keeps where the bytes of a request of io_uring are. Run once, and attached nowhere. */
SEC("raw_tp")
int keeps_ring_bytes(void *ctx __attribute__((unused)))
{
	return keeps_bytes();
}

/* Run at each scrape, and attached nowhere. */
SEC("raw_tp")
int sweep(void *ctx __attribute__((unused)))
{
	if (serves_unix || tls)
		bpf_for_each_map_elem(&connections, end_swept, NULL, 0);
	if (tls)
		bpf_for_each_map_elem(&tls_connections, forget_tls_connection, NULL, 0);
	return 0;
}
