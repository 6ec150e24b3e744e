/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The functions that are probed: what each does, which are left out together, and what the cookie of a probe has of its
 * function. exporter/cuda/functions.py has their names. */
#pragma once
#include <stddef.h>
#include "probe.h"

/* The names after the underscore are the values of the metrics' labels. */
enum layer { layer_driver, layer_runtime } __attribute__((packed));
enum memory {
	memory_device,
	memory_pool,
	memory_vmm,
	memory_managed,
	memory_pinned_host
} __attribute__((packed));
enum direction {
	direction_unknown,
	direction_h2d,
	direction_d2h,
	direction_d2d,
	direction_h2h
} __attribute__((packed));
enum host { host_none, host_unknown, host_pageable, host_pinned, host_managed } __attribute__((packed));

/* What a call that succeeded has done. */
enum effect {
	effect_none,
	effect_allocate,	/* *arg0 is the address, arg1 the size */
	effect_allocate_from,	/* the same, arg2 the pool */
	effect_allocate_pitch,	/* *arg0, *arg1 the pitch, arg3 the height */
	effect_allocate_extent, /* *arg0 a cudaPitchedPtr, then a cudaExtent by value */
	effect_register,	/* arg0, arg1 */
	effect_create,		/* *arg0 a handle, arg1 the size, arg2 the properties */
	effect_retain,		/* *arg0 a handle */
	effect_map,		/* arg0 the address, arg1 the size, arg3 the handle */
	effect_unmap,		/* arg0, arg1 */
	effect_free,		/* arg0 */
	effect_release,		/* arg0 a handle */
	effect_copy,
	effect_copy_2d,	   /* arg0 points to a CUDA_MEMCPY2D */
	effect_copy_3d,	   /* arg0 points to a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER */
	effect_copy_batch, /* arg0, arg1, arg2 arrays of destinations, sources and sizes, arg3 their length */
	effect_copy_unread, /* copies with descriptions that are not read, the argument at bytes_at is their number, or one */
	effect_wait,
	effect_context_create,	/* *arg0, becomes current */
	effect_context_destroy, /* arg0 */
	effect_context_set,	/* arg0 */
	effect_context_push,	/* arg0 */
	effect_context_pop,
	effect_primary_retain,	/* *arg0, of device arg1 */
	effect_primary_release, /* of device arg0 */
	effect_primary_reset,	/* of device arg0 */
	effect_device_reset,	/* the current context */
	effect_pool_create,	/* *arg0 a pool, arg1 the properties */
	effect_pool_at,		/* *arg0 a pool, arg1 a location, arg2 the type of its memory */
	effect_pool_of_device,	/* *arg0 a pool, of device arg1 */
	effect_pool_import,	/* *arg0 a pool */
	effect_pool_destroy,	/* arg0 */
	effect_stream_create,	/* *arg0 */
	effect_stream_destroy,	/* arg0 */
	effect_capture_begin,	/* of stream arg0 */
	effect_capture_end,	/* of stream arg0 */
	effect_graph_node,	/* what effect_allocate and effect_free have in a capture */
} __attribute__((packed));

RETURNING()
PASSING()

/* Functions that are left out together in a process where they cost too much: exporter/cuda/functions.py. */
enum group { group_launches, group_transfers, group_memory, GROUPS, group_none = GROUPS };

static __always_inline enum group group_of(enum effect effect)
{
	if (effect >= effect_copy && effect <= effect_wait)
		return group_transfers;
	if ((effect >= effect_allocate && effect <= effect_register) || effect == effect_free ||
	    effect == effect_graph_node)
		return group_memory;
	return group_none;
}

#define NO_ARGUMENT 255

/* Travels as the uprobe's 64-bit cookie. */
struct cookie {
	__u8 api;     /* which function, counted from 1 */
	__u8 library; /* its number in `returning` and `passing` */
	enum layer layer;
	enum effect effect;
	enum memory memory;
	enum direction direction; /* of a copy, if its name has it */
	__u8 bytes_at;		  /* which argument has a copy's size, or a new context's device */
	__u8 host_at;		  /* which argument points to a copy's host side, or NO_ARGUMENT */
};
