/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What servers read and write by OpenSSL, before it is encrypted: SSL_read, SSL_write, SSL_read_ex, SSL_write_ex. */
#pragma once
#include "tls_calls.h"

/* With memory BIOs there is no socket: a connection is the SSL of a process. */
struct tls_key {
	__u64 ssl;
	__u32 tgid;
	__u32 unused;
};

/* Those on which a request was read, with the key of their connection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_CONNECTIONS);
	__type(key, struct tls_key);
	__type(value, __u64);
} tls_connections SEC(".maps");
__u64 tls_connections_lost = 0, tls_connections_full_tick = 0;
__u64 tls_begun = 0;

/* Of a process that has ended. */
static long forget_tls_connection(void *map, const struct tls_key *at, const __u64 *id, void *unused)
{
	struct tls_key key = *at;

	if (!bpf_map_lookup_elem(&processes, &key.tgid))
		bpf_map_delete_elem(&tls_connections, &key);
	return 0;
}

/* Ends what is open on a connection, by the client if that was seen to close it. */
static __always_inline void end_tls_connection(__u64 ssl, __u32 tgid, enum outcome outcome)
{
	struct tls_key key = {.ssl = ssl, .tgid = tgid};
	__u64 *id = bpf_map_lookup_elem(&tls_connections, &key), connection_key;
	struct connection *connection;

	if (!id)
		return;
	connection_key = *id;
	connection = bpf_map_lookup_elem(&connections, &connection_key);
	if (!connection)
		return;
	if (outcome == OF_UNKNOWN && connection->tls_socket) /* which is still open */
		outcome = UNTERMINATED;
	drop(connection_key, connection->client_closed ? CLIENT_GONE : outcome);
}

/* A call that reads or writes; the cookie is whether it writes the number of bytes to its fourth argument. One that such
 * a call makes is a part of it. */
UPROBE(on_tls_call)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = PT_REGS_SP(ctx), ip = PT_REGS_IP(ctx);
	struct tls_thread *thread;
	__u32 tgid = id >> 32;

	if (!may_be_followed(tgid) || !is_followed(tgid))
		return 0;
	thread = lookup_or_init(tls_threads, &id, &no_tls_thread);
	if (thread && thread->sp && made_by(thread->sp, thread->ip == ip, sp))
		return 0;
	if (!thread || is_beside(sp)) {
		add(&unreadable, 1);
		end_tls_connection(PT_REGS_PARM1(ctx), tgid, UNREADABLE);
		return 0;
	}
	thread->sp = sp;
	thread->ip = ip;
	thread->ssl = PT_REGS_PARM1(ctx);
	thread->buffer = PT_REGS_PARM2(ctx);
	thread->size = bpf_get_attach_cookie(ctx) ? PT_REGS_PARM3(ctx) : (__u32)PT_REGS_PARM3(ctx);
	thread->result = bpf_get_attach_cookie(ctx) ? PT_REGS_PARM4(ctx) : 0;
	thread->start = bpf_ktime_get_ns();
	return 0;
}

/* How many bytes a call has moved, which returned this. */
static __always_inline __u32 moved(const struct tls_thread *thread, __s32 returned)
{
	__u64 size = 0;

	if (returned <= 0)
		return 0;
	size = thread->result ? read_u64(thread->result) : (__u32)returned;
	return size <= thread->size ? at_most(size, 1u << 31) : 0;
}

/* A connection of TLS that begins with what was just read, and its key; NULL if that is no request. */
static __always_inline struct connection *new_tls_connection(const struct tls_key *key, __u64 socket,
							     __u64 *id)
{
	struct connection *connection;
	__u64 *known, zero = 0;

	known = lookup_or_init(tls_connections, key, &zero);
	if (!known)
		return NULL;
	if (!*known)
		*known = __sync_fetch_and_add(&tls_begun, 1) + 1;
	*id = *known;
	connection = lookup_or_init(connections, id, &no_connection);
	if (!connection)
		return NULL;
	connection->tgid = key->tgid;
	connection->swept = 1;
	if (socket && !bpf_map_update_elem(&tls_sockets, &socket, id, BPF_ANY)) {
		connection->tls_socket = socket;
		connection->client_closed =
		    BPF_CORE_READ((struct sock *)socket, __sk_common.skc_state) == TCP_CLOSE_WAIT;
	}
	return connection;
}

/* A call of a followed process has moved bytes. What it sent counts from its beginning. */
static __always_inline void on_tls_moved(struct tls_thread *thread, __u32 size, bool sends)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct tls_key key = {.ssl = thread->ssl, .tgid = tgid};
	__u64 *id = bpf_map_lookup_elem(&tls_connections, &key), connection_key = id ? *id : 0;
	struct connection *connection = id ? bpf_map_lookup_elem(&connections, &connection_key) : NULL;
	struct walk *walk;

	if (!connection) {
		if (sends || !begins_request(thread->buffer, size))
			return;
		connection = new_tls_connection(&key, thread->socket, &connection_key);
		if (!connection)
			return;
	}
	walk = sends ? &connection->sends : &connection->reads;
	begin_walk(walk, connection_key, sends ? thread->start : bpf_ktime_get_ns());
	walk->base = thread->buffer;
	walk->size = size;
	follow_piece(connection, walk, sends);
	if (walk->failed) {
		add(&unreadable, 1);
		drop(connection_key, UNREADABLE);
	}
}

static __always_inline int on_tls_return(struct pt_regs *ctx, bool sends)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct tls_thread *thread = bpf_map_lookup_elem(&tls_threads, &id);
	__u32 size;

	if (!thread || !is_return_of(thread->sp, ctx))
		return 0;
	thread->sp = 0;
	size = moved(thread, PT_REGS_RC(ctx));
	if (size)
		on_tls_moved(thread, size, sends);
	return 0;
}

AT_RETURN(on_tls_read)
{
	return on_tls_return(ctx, false);
}

AT_RETURN(on_tls_written)
{
	return on_tls_return(ctx, true);
}

/* SSL_shutdown, which returns 1 where the client has shut its side down before. */
AT_RETURN(on_tls_shutdown)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct tls_thread *thread = bpf_map_lookup_elem(&tls_threads, &id);

	if (!thread || !is_return_of(thread->sp, ctx))
		return 0;
	thread->sp = 0;
	end_tls_connection(thread->ssl, id >> 32, (__s32)PT_REGS_RC(ctx) == 1 ? CLIENT_GONE : UNTERMINATED);
	return 0;
}

/* SSL_free and SSL_clear: the next connection may have the same address. Without a shutdown only the socket, where it is
 * known, shows which side ended this one. */
UPROBE(on_tls_end)
{
	struct tls_key key = {.ssl = PT_REGS_PARM1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32};

	end_tls_connection(key.ssl, key.tgid, OF_UNKNOWN);
	bpf_map_delete_elem(&tls_connections, &key);
	return 0;
}
