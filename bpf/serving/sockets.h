/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Socket calls: of which process and connection they are, and the connections that begin with them. */
#pragma once
#include "calls.h"
#include "tls_calls.h"

#define SOCK_STREAM 1
#define SHUT_BOTH 3
#define TCP_SYN_RECV 3
#define TCP_FIN_WAIT1 4
#define TCP_CLOSE 7
#define TCP_LAST_ACK 9

/* A bit for each port at which a followed process was seen to read a request. */
MAP(ports, ARRAY, __u32, __u64, 1024);
/* Whether a request was ever read from a TCP or a Unix socket. */
__u32 serves_tcp = 0, serves_unix = 0;

/* Socket calls of followed processes that moved bytes which are not read: sendfile, splice. */
__u64 unread_calls = 0;

static __always_inline bool serves(__u16 port)
{
	__u32 word = port >> 6;
	__u64 *bits = bpf_map_lookup_elem(&ports, &word);

	return bits && *bits >> (port & 63) & 1;
}

static __always_inline void note_port(struct sock *sk)
{
	__u16 port = BPF_CORE_READ(sk, __sk_common.skc_num);
	__u32 word = port >> 6;
	__u64 *bits = bpf_map_lookup_elem(&ports, &word);

	if (bits && port)
		__sync_fetch_and_or(bits, 1ull << (port & 63));
	serves_tcp = 1;
}

/* The other side of a Unix socket is gone: of a server's, or of the client's that reads its end. */
static __always_inline void on_unix_end(struct sock *sk)
{
	struct connection *connection;
	__u64 key = (__u64)sk;
	enum outcome outcome = CLIENT_GONE;

	if (BPF_CORE_READ(sk, __sk_common.skc_family) != AF_UNIX ||
	    BPF_CORE_READ(sk, sk_shutdown) != SHUT_BOTH)
		return;
	connection = connection_of(&key);
	if (!connection) {
		key = (__u64)BPF_CORE_READ((struct unix_sock *)sk, peer);
		connection = connection_of(&key);
		outcome = UNTERMINATED;
	}
	if (connection && outcome == UNTERMINATED && !bpf_map_lookup_elem(&processes, &connection->tgid))
		outcome = SERVER_GONE;
	if (connection)
		drop(key, outcome);
}

/* A connection that begins on a socket; NULL if this has none. */
static __always_inline struct connection *new_connection(struct sock *sk, __u32 tgid)
{
	struct connection *connection;
	__u64 key = (__u64)sk;

	if (BPF_CORE_READ(sk, __sk_common.skc_state) == TCP_CLOSE ||
	    BPF_CORE_READ(sk, sk_type) != SOCK_STREAM)
		return NULL;
	connection = lookup_or_init(connections, &key, &no_connection);
	if (connection) {
		connection->tgid = tgid;
		if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_UNIX) {
			serves_unix = connection->swept = 1;
			connection->inode = inode_of(sk);
		} else {
			note_port(sk);
			if (BPF_CORE_READ(sk, __sk_common.skc_state) == TCP_CLOSE_WAIT)
				connection->client_closed = BEFORE_ANSWER;
		}
	}
	return connection;
}

static __always_inline long follow_vector(struct steps *steps, __u32 index, bool sends)
{
	struct walk *walk = steps->walk;
	struct iovec piece;
	__u64 skipped;

	if (!walk->left)
		return 1;
	if (!read_iovec(&piece, walk->iov + index * sizeof(piece), walk->in_kernel)) {
		walk->failed = 1;
		return 1;
	}
	skipped = piece.size < steps->skipped ? piece.size : steps->skipped;
	steps->skipped -= skipped;
	piece.size -= skipped;
	walk->base = piece.base + skipped;
	walk->size = piece.size < walk->left ? piece.size : walk->left;
	walk->left -= walk->size;
	follow_piece(steps->connection, walk, sends);
	walk->sequence += walk->size;
	return walk->failed ? 1 : 0;
}

static long read_piece(__u32 index, struct steps *steps)
{
	return follow_vector(steps, index, false);
}

static long sent_piece(__u32 index, struct steps *steps)
{
	return follow_vector(steps, index, true);
}

/* Finds the bytes of a socket that this thread has just moved. False where that is not known. */
static __always_inline bool find_bytes(struct sock *sk, struct task_struct *task,
				       const struct connection *connection, __u32 size, bool sends,
				       struct place *place)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	bool by_ring = CALL_OF(regs) == IO_URING_ENTER || task->flags & PF_IO_WORKER;

	if (uses_rings() && (by_ring || socket_at(task, FIRST_OF(regs)) != sk))
		return find_ring_bytes(sk, size, sends, place);
	if (by_ring) {
		add(&ring_calls_unread, 1);
		return false;
	}
	return find_call_bytes(regs, connection, size, sends, place);
}

static __always_inline void take_arrival(struct walk *walk, struct sock *sk)
{
	struct arrivals *arrived = bpf_map_lookup_elem(&arrivals, &walk->key);

	if (!arrived)
		return;
	if (arrived->first && arrived->first < walk->now)
		walk->arrived = arrived->first;
	arrived->first = 0;
	if (arrived->count)
		walk->sequence = BPF_CORE_READ((struct tcp_sock *)sk, copied_seq) - walk->left;
}

/* The connection of a followed process on which bytes were moved; NULL where there is none yet. */
static __always_inline struct connection *known_connection(struct sock *sk)
{
	__u64 key = (__u64)sk;
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);

	if (connection && is_of_closed(connection, key)) {
		drop_closed(connection, key);
		return NULL;
	}
	return connection;
}

/* A connection that begins with what was just read from this place; NULL if that is no request. */
static __always_inline struct connection *begun_connection(struct sock *sk, const struct place *place,
							   __u32 size, __u32 tgid)
{
	struct iovec first = {.base = place->base, .size = size};

	if (place->iov && !read_iovec(&first, place->iov, place->in_kernel))
		return NULL;
	if (!begins_request(first.base, first.size < size ? first.size : size))
		return NULL;
	return new_connection(sk, tgid);
}

/* Follows what a call moved on a connection. */
static __always_inline void follow_call(struct connection *connection, struct sock *sk,
					const struct place *place, __u32 size, bool sends)
{
	struct steps steps = {.connection = connection,
			      .skipped = place->skipped,
			      .walk = sends ? &connection->sends : &connection->reads};
	struct walk *walk = steps.walk;
	struct pt_regs *regs;

	begin_walk(walk, (__u64)sk, bpf_ktime_get_ns());
	walk->base = place->base;
	walk->iov = place->iov;
	walk->in_kernel = place->in_kernel;
	walk->left = walk->size = size;
	if (place->moved) {
		regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
		walk->vector = SECOND_OF(regs);
		walk->moved = place->moved;
		walk->moved_size = size;
		walk->moved_by = bpf_get_current_pid_tgid();
	}
	if (!sends)
		take_arrival(walk, sk);
	if (place->iov) {
		bpf_loop(MOST_PIECES, sends ? sent_piece : read_piece, &steps, 0);
		if (walk->left)
			walk->failed = 1;
	} else {
		follow_piece(connection, walk, sends);
	}
	if (walk->failed) {
		add(&unreadable, 1);
		drop((__u64)sk, UNREADABLE);
	}
}

/* Ends what is open on a connection, and follows it no more: it is not known what was read of it. */
static __always_inline void give_up(struct sock *sk, __u32 tgid)
{
	struct connection *connection;

	drop((__u64)sk, UNREADABLE);
	connection = new_connection(sk, tgid);
	if (connection) {
		connection->http2 = OTHER_PROTOCOL;
		add(&unreadable, 1);
	}
}

/* A call of any process that moved bytes. */
static __always_inline void on_call(struct sock *sk, __u32 size, bool sends)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct connection *connection;
	struct place place = {};
	__u32 tgid = task->tgid;
	bool found;

	if (!may_be_followed(tgid))
		return;
	connection = known_connection(sk);
	if (connection ? connection->http2 == OTHER_PROTOCOL : sends)
		return;
	if (!(connection && connection->tgid == tgid) && !is_followed(tgid))
		return;
	if (tls && is_of_tls((__u64)sk, sends))
		return;
	found = find_bytes(sk, task, connection, size, sends, &place);
	if (!found)
		add(&unread_calls, 1);
	if (!found && place.moved) {
		give_up(sk, tgid);
		return;
	}
	if (!connection && found)
		connection = begun_connection(sk, &place, size, tgid);
	if (!connection)
		return;
	if (!sends && connection->answered == connection->received)
		connection->tgid = tgid; /* it may have been given the connection by another process */
	follow_call(connection, sk, &place, size, sends);
}
