/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Who a communicator is: read from the library's own memory, or from what ncclCommInitRank is given. */
#pragma once
#include "calls.h"

static __always_inline const struct layout *layout_of(struct cookie cookie)
{
	__u32 index = cookie.layout;

	return bpf_map_lookup_elem(&layouts, &index);
}

#define ADDRESS_BITS 48

/* Without the guard, an address where the hash should be is taken for one: a hash has as few bits once in 65,536. */
static __always_inline bool looks_like_hash(const struct layout *layout, __u64 hash)
{
	return layout->guarded ? hash : hash >> ADDRESS_BITS;
}

static __always_inline bool is_rank(const struct identity *who)
{
	return who->rank >= 0 && who->rank < who->nranks && who->nranks < MOST_RANKS;
}

/* False where the library's layout is not known, or what is there can be no communicator that is ready. Without a hash
 * in memory who->hash is 0. */
static __always_inline bool read_identity(const struct layout *layout, __u64 comm, struct identity *who)
{
	__u64 size = offsetof(struct identity, zero);

	__builtin_memset(who, 0, sizeof(*who));
	if (!comm || !layout || !layout->identity)
		return false;
	if (!bpf_probe_read_user(who, size, (void *)(comm + layout->identity)) && is_rank(who)) {
		if (layout->hashless)
			who->hash = 0;
		if (layout->hashless || looks_like_hash(layout, who->hash))
			return true;
	}
	__builtin_memset(who, 0, sizeof(*who));
	return false;
}

#define ID_BYTES 128 /* NCCL_UNIQUE_ID_BYTES */

/* commHash of an ncclUniqueId, which a library that does not keep it computes too (getHash of utils.cc); 0 if the id
 * cannot be read. A function of its own: the verifier goes through the loops once. */
__noinline __u64 hash_of_id(__u64 address)
{
	__u64 hash = 5381, word;

	for (int i = 0; i < ID_BYTES / 8; i++) {
		if (bpf_probe_read_user(&word, sizeof(word), (void *)(address + 8 * i)))
			return 0;
		for (int byte = 0; byte < 8; byte++)
			hash = hash * 33 ^ (__s64)(__s8)(word >> 8 * byte);
	}
	return hash;
}

/* Who ncclCommInitRank makes. The id is passed by value: on x86-64 on the stack, on arm64 by the address of a copy. */
static __always_inline void read_arguments(struct pt_regs *ctx, struct identity *who)
{
#if defined(__TARGET_ARCH_x86)
	__u64 id = ON_STACK(ctx), rank = PT_REGS_PARM3(ctx);
#else
	__u64 id = PT_REGS_PARM3(ctx), rank = PT_REGS_PARM4(ctx);
#endif
	*who = (struct identity){.rank = rank, .nranks = PT_REGS_PARM2(ctx), .device = -1};
	if (is_rank(who))
		who->hash = hash_of_id(id);
}
