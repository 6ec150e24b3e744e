/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Connections, whether of a socket or of TLS: how they begin, are followed and end. */
#pragma once
#include "frames.h"
#include "requests.h"

#define AF_UNIX 1
#define IPPROTO_TCP 6 /* not MPTCP */
#define TCP_CLOSE_WAIT 8

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded" /* the layouts are the kernel's, not these */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common {
	unsigned short skc_family;
	__u16 skc_num;
	volatile unsigned char skc_state;
};
struct socket {
	struct sock *sk;
};
struct socket_alloc {
	struct inode vfs_inode;
};
struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	int sk_err;
	__u8 sk_shutdown;
	__u16 sk_type;
	__u16 sk_protocol;
};
struct unix_sock {
	struct sock *peer;
};
struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
};
#pragma clang attribute pop
#pragma clang diagnostic pop

const volatile __u32 all_processes = 0;
/* Whether OpenSSL is probed: then connections of TLS have numbers as their keys, which are no addresses of sockets. */
const volatile __u32 tls = 0;

static const struct connection no_connection;
/* The key of the connection of TLS that a socket carries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_CONNECTIONS);
	__type(key, __u64);
	__type(value, __u64);
} tls_sockets SEC(".maps");

/* False if this process is not followed: mostly so of others. */
static __always_inline bool may_be_followed(__u32 tgid)
{
	__u32 *maybe = candidate(tgid);

	return all_processes || (maybe && *maybe);
}

/* Whether a process is followed that may be. */
static __always_inline bool is_followed(__u32 tgid)
{
	return bpf_map_lookup_elem(&processes, &tgid) || (all_processes && follow(tgid));
}

/* The connection on a socket, with its key. */
static __always_inline struct connection *connection_of(__u64 *key)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, key);
	__u64 *carried;

	if (connection || !tls)
		return connection;
	carried = bpf_map_lookup_elem(&tls_sockets, key);
	if (!carried)
		return NULL;
	*key = *carried;
	return bpf_map_lookup_elem(&connections, key);
}

/* Ends the oldest request on a connection that is not answered to its end. */
CHECKED_ONCE int end_oldest(struct connection *connection, enum outcome outcome, __u64 now)
{
	if (!connection)
		return 0;
	if (!connection->answering) {
		begin_answer(connection, NULL);
		connection->writing.bytes = 0;
	}
	finish(connection, outcome, now);
	return 0;
}

/* Whether an answer is being sent that has no other end. */
static __always_inline bool ends_with_connection(struct connection *connection)
{
	return connection->answering && connection->writing.state == UNTIL_CLOSE;
}

/* Ends what is open on a connection, and forgets it. */
CHECKED_ONCE int drop(__u64 key, enum outcome outcome)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);
	__u64 now = bpf_ktime_get_ns();

	if (!connection)
		return 0;
	if (connection->http2)
		end_streams(connection, key, outcome, now);
	if (ends_with_connection(connection) && outcome == UNTERMINATED)
		finish(connection, COMPLETE, now);
	for (int i = 0; i < MOST_PENDING && connection->answered != connection->received; i++)
		end_oldest(connection, outcome, now);
	if (connection->tls_socket)
		bpf_map_delete_elem(&tls_sockets, &connection->tls_socket);
	bpf_map_delete_elem(&arrivals, &key);
	bpf_map_delete_elem(&connections, &key);
	return 0;
}

static __always_inline __u64 inode_of(struct sock *sk)
{
	struct socket_alloc *allocated = (void *)BPF_CORE_READ(sk, sk_socket);

	return BPF_CORE_READ(allocated, vfs_inode.i_ino);
}

/* Whether a connection is of a Unix socket that the server has closed, which need not be seen. */
static __always_inline bool is_of_closed(struct connection *connection, __u64 key)
{
	return connection->inode && connection->inode != inode_of((struct sock *)key);
}

/* Ends it. Whether the client took an answer without another end before it was gone is not known. */
static __always_inline void drop_closed(struct connection *connection, __u64 key)
{
	drop(key, ends_with_connection(connection) ? OF_UNKNOWN : UNTERMINATED);
}

/* A connection of a process that has ended or of a Unix socket that is closed: nobody need call anything after that. */
static long end_swept(void *map, __u64 *key, struct connection *connection, void *unused)
{
	if (connection->swept && !bpf_map_lookup_elem(&processes, &connection->tgid))
		drop(*key, SERVER_GONE);
	else if (is_of_closed(connection, *key))
		drop_closed(connection, *key);
	return 0;
}

static __always_inline bool is_request(__u64 word, __u32 size)
{
	if (size < 4)
		return !((word ^ WORD("POST")) << (64 - 8 * size)) ||
		       !((word ^ WORD("PRI ")) << (64 - 8 * size));
	return BEGINS(word, "POST") || BEGINS(word, "GET ") || BEGINS(word, "HEAD") || BEGINS(word, "PUT ") ||
	       BEGINS(word, "DELE") || BEGINS(word, "OPTI") || BEGINS(word, "PATC") || BEGINS(word, "PRI ");
}

/* Whether a request begins with what was just read. */
static __always_inline bool begins_request(__u64 base, __u32 size)
{
	__u64 word = 0;

	size = at_most(size, 8);
	return size && !bpf_probe_read_user(&word, size, (void *)base) && is_request(word, size);
}

static __always_inline void begin_walk(struct walk *walk, __u64 key, __u64 now)
{
	walk->key = key;
	walk->now = now;
	walk->arrived = walk->iov = walk->left = walk->sequence = walk->failed = walk->in_kernel = 0;
}

/* Follows a piece of what was read or sent. */
static __always_inline void follow_piece(struct connection *connection, struct walk *walk, bool sends)
{
	if (!walk->size || connection->http2 == OTHER_PROTOCOL)
		return;
	walk->at = walk->loaded_at = walk->loaded = walk->kept = 0;
	if (!connection->http2) {
		if (sends)
			sent_lines(connection);
		else
			read_lines(connection);
	}
	if (connection->http2 == OTHER_PROTOCOL) {
		add(&unreadable, 1);
		return;
	}
	if (connection->http2 && !walk->failed)
		follow_frames(connection, walk, sends);
	if (walk->at < walk->size)
		walk->failed = 1;
	if (sends && connection->answering)
		keep_tail(walk, &connection->out);
}
