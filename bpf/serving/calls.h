/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* System calls that move bytes of sockets: where these bytes are. */
#pragma once
#include "rings.h"

#define MOST_PIECES 1024 /* UIO_MAXIOV: of one message, and messages of one call */

/* Of user space. */
struct iovec {
	__u64 base;
	__u64 size;
};
struct message {
	__u64 name;
	__u64 name_size;
	__u64 iov;
	__u64 pieces;
};
struct numbered_message { /* of several in a call */
	struct message message;
	__u64 control;
	__u64 control_size;
	__u64 flags;
	__u32 size; /* bytes that were moved, after that */
	__u32 unused;
};

/* The system calls by number, and their arguments. */
#if defined(__TARGET_ARCH_x86)
#define USER_CS 0x33
enum {
	READ = 0,
	WRITE = 1,
	READV = 19,
	WRITEV = 20,
	SENDTO = 44,
	RECVFROM = 45,
	SENDMSG = 46,
	RECVMSG = 47,
	RECVMMSG = 299,
	SENDMMSG = 307,
	PREADV2 = 327,
	PWRITEV2 = 328
};
#define CALL_OF(regs) ((regs)->cs == USER_CS ? (regs)->orig_rax : ~0ul)
#define FIRST_OF(regs) ((regs)->rdi)
#define SECOND_OF(regs) ((regs)->rsi)
#define THIRD_OF(regs) ((regs)->rdx)
#define FIFTH_OF(regs) ((regs)->r8)
#else
enum {
	READ = 63,
	WRITE = 64,
	READV = 65,
	WRITEV = 66,
	SENDTO = 206,
	RECVFROM = 207,
	SENDMSG = 211,
	RECVMSG = 212,
	RECVMMSG = 243,
	SENDMMSG = 269,
	PREADV2 = 286,
	PWRITEV2 = 287
};
#define CALL_OF(regs) ((regs)->user_regs.regs[8])
#define FIRST_OF(regs) ((regs)->orig_x0)
#define SECOND_OF(regs) ((regs)->user_regs.regs[1])
#define THIRD_OF(regs) ((regs)->user_regs.regs[2])
#define FIFTH_OF(regs) ((regs)->user_regs.regs[4])
#endif

/* Whether sendmmsg or recvmmsg was seen with several messages. */
__u32 moves_messages = 0;

/* Reads an element of the list of pieces. */
static __always_inline bool read_iovec(struct iovec *piece, __u64 at, bool in_kernel)
{
	if (in_kernel)
		return !bpf_probe_read_kernel(piece, sizeof(*piece), (void *)at);
	return read_user(piece, at);
}

struct room {
	__u64 iov;
	__u64 pieces;
	__u64 bytes;
};

static long add_piece(__u32 index, struct room *room)
{
	struct iovec piece;

	if (index >= room->pieces || !read_iovec(&piece, room->iov + index * sizeof(piece), false))
		return 1;
	room->bytes += piece.size;
	return 0;
}

/* The bytes for which a message has room; 0 where it cannot be read. */
CHECKED_ONCE __u64 room_of(__u64 at)
{
	struct message message;
	struct room room = {};

	if (!read_user(&message, at))
		return 0;
	room.iov = message.iov;
	room.pieces = message.pieces;
	bpf_loop(MOST_PIECES, add_piece, &room, 0);
	return room.bytes;
}

/* Whether the message before the next one was moved by this call as far as that is to be seen: the kernel has written its
 * size, and ends a call that has sent only a part of one. */
static __always_inline bool goes_on(const struct walk *walk, bool sends)
{
	__u64 before = walk->vector + (walk->moved - 1) * sizeof(struct numbered_message);
	__u32 size = 0;

	return read_user(&size, before + __builtin_offsetof(struct numbered_message, size)) &&
	       size == walk->moved_size && (!sends || room_of(before) == size);
}

/* The number, from 1 on, of the message of sendmmsg or recvmmsg that was just moved, which the kernel does not give: each call
 * moves one after the other. 0 where that is not known. On its own for its stack, of which Linux 6.1 has little. */
CHECKED_ONCE __u32 number_of_message(const struct connection *connection, __u64 vector, __u32 count,
				     __u32 size, bool sends)
{
	const struct walk *walk = NULL;
	__u32 moved = 0;

	if (connection)
		walk = sends ? &connection->sends : &connection->reads;
	if (count > 1) {
		moves_messages = 1;
		if (walk && walk->moved && walk->moved < at_most(count, MOST_PIECES) &&
		    walk->vector == vector && walk->moved_by == (__u32)bpf_get_current_pid_tgid() &&
		    goes_on(walk, sends))
			moved = walk->moved;
	}
	return room_of(vector + moved * sizeof(struct numbered_message)) < size ? 0 : moved + 1;
}

/* Finds the message that was just moved. False where a call can end between any two of them, which a timeout may do unseen. */
static __always_inline bool find_message(struct pt_regs *regs, const struct connection *connection,
					 __u32 size, bool sends, struct place *place)
{
	__u32 count = THIRD_OF(regs), number = 0;

	if (count <= 1 || sends || !FIFTH_OF(regs))
		number = number_of_message(connection, SECOND_OF(regs), count, size, sends);
	place->moved = number ? number : 1;
	return number;
}

/* A call has failed: one of several messages ends with that. */
static __always_inline void messages_end(struct sock *sk, bool sends)
{
	__u64 key = (__u64)sk;
	struct connection *connection = moves_messages ? bpf_map_lookup_elem(&connections, &key) : NULL;

	if (connection && sends)
		connection->sends.moved = 0;
	else if (connection)
		connection->reads.moved = 0;
}

/* Finds the bytes that a system call moved. False if it is another call. */
static __always_inline bool find_call_bytes(struct pt_regs *regs, const struct connection *connection,
					    __u32 size, bool sends, struct place *place)
{
	__u64 call = CALL_OF(regs), second = SECOND_OF(regs);
	bool of_several = call == (sends ? SENDMMSG : RECVMMSG);
	__u64 iov;

	if (call == (sends ? WRITE : READ) || call == (sends ? SENDTO : RECVFROM)) {
		place->base = second;
	} else if (call == (sends ? WRITEV : READV) || call == (sends ? PWRITEV2 : PREADV2)) {
		place->iov = second;
	} else if (call == (sends ? SENDMSG : RECVMSG) || of_several) {
		if (of_several && !find_message(regs, connection, size, sends, place))
			return false;
		if (of_several)
			second += (place->moved - 1) * sizeof(struct numbered_message);
		if (!read_user(&iov, second + __builtin_offsetof(struct message, iov)))
			return false;
		place->iov = iov;
	} else {
		return false;
	}
	return true;
}
