/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The functions of AMD's libamdhip64 that are probed, and what each does. Names and arguments are those of
 * hip_runtime_api.h, hip_ext.h and amd_hip_runtime_pt_api.h of HIP 5.2; of later releases where 5.2 has no such function. */
#pragma once
#include <linux/types.h>
struct call;
static void abandon(const struct call *call);
#define ABANDON(call) abandon(call)
static void replace_program(__u32 tgid);
#define REPLACED(tgid) replace_program(tgid)
struct thread;
static void leave_place(const struct thread *thread);
#define LEFT(thread) leave_place(thread)
#define SHARED_TABLES table_places, table_streams, table_captured,
#include "../call.bpf.h"

PASSING()

enum memory {
	memory_none,
	memory_device,
	memory_pool,
	memory_managed,
	memory_pinned_host
} __attribute__((packed));
enum direction { /* hipMemcpyKind + 1, but for unknown */
		 direction_unknown,
		 direction_h2h = 1,
		 direction_h2d,
		 direction_d2h,
		 direction_d2d
} __attribute__((packed));

/* What a call that succeeded has done. */
enum effect {
	effect_none,
	effect_allocate,	/* *arg0 is the address, arg1 the size */
	effect_allocate_pitch,	/* *arg0, *arg1 the pitch, arg3 the height */
	effect_allocate_extent, /* *arg0 a hipPitchedPtr, then a hipExtent by value */
	effect_register,	/* arg0, arg1 */
	effect_free,		/* arg0 */
	effect_copy,
	effect_copy_described, /* arg0 points to a hip_Memcpy2D */
	effect_copy_3d,	       /* arg0 points to a hipMemcpy3DParms */
	effect_copy_unsized,   /* a copy of which the bytes are not read */
	effect_wait,
	effect_reset,
	effect_set_device,     /* to arg0, for the thread */
	effect_context,	       /* of the thread: sets its device */
	effect_stream_create,  /* *arg0, on the thread's device */
	effect_stream_destroy, /* arg0 */
	effect_capture_begin,  /* of stream arg0 */
	effect_capture_end     /* of stream arg0 */
} __attribute__((packed));

struct function {
	enum effect effect;
	enum memory memory;
	enum direction direction;
	__u8 bytes_at;		 /* which argument has the bytes of a copy, or of one of its rows */
	__u8 height_at, kind_at; /* 0: none */
	__u8 stream;		 /* where its stream is; 0: it has none */
	__u8 copies;		 /* which argument, from 1, has the number of copies; 0: it is one */
};
#define STREAM_AT(argument) ((argument) + 1)
#define STREAM_IN_CONFIG 254 /* in what arg0 points to */
#define STREAMS_SEVERAL 255  /* streams of several devices, or a pool of an unknown one */

/* F(name, initializers of struct function) */
#define ALLOCATES(F, name, kind) F(name, effect_allocate, .memory = memory_##kind)
#define ALLOCATES_ON(F, name, kind, stream_)                                                                 \
	F(name, effect_allocate, .memory = memory_##kind, .stream = stream_)
#define FREES(F, name, kind) F(name, effect_free, .memory = memory_##kind)
#define COPIES(F, name, at, way) F(name, effect_copy, .bytes_at = at, .direction = direction_##way)
#define COPIES_BY_KIND(F, name, at, kind) F(name, effect_copy, .bytes_at = at, .kind_at = kind)
#define COPIES_ROWS(F, name, at, kind)                                                                       \
	F(name, effect_copy, .bytes_at = at, .height_at = at + 1, .kind_at = kind)
/* The same with a stream behind the bytes, the kind. */
#define COPIES_ASYNC(F, name, at, way)                                                                       \
	F(name, effect_copy, .bytes_at = at, .direction = direction_##way, .stream = STREAM_AT(at + 1))
#define COPIES_BY_KIND_ASYNC(F, name, at, kind)                                                              \
	F(name, effect_copy, .bytes_at = at, .kind_at = kind, .stream = STREAM_AT(kind + 1))
#define COPIES_ROWS_ASYNC(F, name, at, kind)                                                                 \
	F(name, effect_copy, .bytes_at = at, .height_at = at + 1, .kind_at = kind,                           \
	  .stream = STREAM_AT(kind + 1))
#define BOTH(M, F, name, ...)                                                                                \
	M(F, name, __VA_ARGS__) M(F, name##_spt, __VA_ARGS__) /* _spt: of the thread's stream */

#define CALLS(F)                                                                                             \
	ALLOCATES(F, hipMalloc, device)                                                                      \
	ALLOCATES(F, hipExtMallocWithFlags, device)                                                          \
	ALLOCATES(F, hipMallocManaged, managed)                                                              \
	ALLOCATES_ON(F, hipMallocAsync, pool, STREAM_AT(2))                                                  \
	ALLOCATES_ON(F, hipMallocFromPoolAsync, pool, STREAMS_SEVERAL)                                       \
	ALLOCATES(F, hipHostMalloc, pinned_host)                                                             \
	ALLOCATES(F, hipHostAlloc, pinned_host)                                                              \
	ALLOCATES(F, hipMallocHost, pinned_host)                                                             \
	ALLOCATES(F, hipMemAllocHost, pinned_host)                                                           \
	F(hipMallocPitch, effect_allocate_pitch, .memory = memory_device)                                    \
	F(hipMemAllocPitch, effect_allocate_pitch, .memory = memory_device)                                  \
	F(hipMalloc3D, effect_allocate_extent, .memory = memory_device)                                      \
	F(hipHostRegister, effect_register, .memory = memory_pinned_host)                                    \
	FREES(F, hipFree, device)                                                                            \
	FREES(F, hipFreeAsync, pool)                                                                         \
	FREES(F, hipHostFree, pinned_host)                                                                   \
	FREES(F, hipFreeHost, pinned_host)                                                                   \
	FREES(F, hipHostUnregister, pinned_host)                                                             \
	/* Arrays have handles, and sizes by their format. */                                                \
	F(hipMallocArray, effect_none)                                                                       \
	F(hipMalloc3DArray, effect_none)                                                                     \
	F(hipMallocMipmappedArray, effect_none)                                                              \
	F(hipArrayCreate, effect_none)                                                                       \
	F(hipArray3DCreate, effect_none)                                                                     \
	F(hipMipmappedArrayCreate, effect_none)                                                              \
	F(hipFreeArray, effect_none)                                                                         \
	F(hipFreeMipmappedArray, effect_none)                                                                \
	F(hipArrayDestroy, effect_none)                                                                      \
	F(hipMipmappedArrayDestroy, effect_none)                                                             \
	/* Physical memory lives until its handle is released and nothing maps it. */                        \
	F(hipMemCreate, effect_none)                                                                         \
	F(hipMemRelease, effect_none)                                                                        \
	F(hipMemMap, effect_none)                                                                            \
	F(hipMemUnmap, effect_none)                                                                          \
	BOTH(COPIES_BY_KIND, F, hipMemcpy, 2, 3)                                                             \
	BOTH(COPIES_BY_KIND_ASYNC, F, hipMemcpyAsync, 2, 3)                                                  \
	COPIES_BY_KIND_ASYNC(F, hipMemcpyWithStream, 2, 3)                                                   \
	COPIES(F, hipMemcpyHtoD, 2, h2d)                                                                     \
	COPIES_ASYNC(F, hipMemcpyHtoDAsync, 2, h2d)                                                          \
	COPIES(F, hipMemcpyDtoH, 2, d2h)                                                                     \
	COPIES_ASYNC(F, hipMemcpyDtoHAsync, 2, d2h)                                                          \
	COPIES(F, hipMemcpyDtoD, 2, d2d)                                                                     \
	COPIES_ASYNC(F, hipMemcpyDtoDAsync, 2, d2d)                                                          \
	COPIES(F, hipMemcpyPeer, 4, d2d)                                                                     \
	COPIES_ASYNC(F, hipMemcpyPeerAsync, 4, d2d)                                                          \
	COPIES(F, hipMemcpyHtoA, 3, h2d)                                                                     \
	COPIES_ASYNC(F, hipMemcpyHtoAAsync, 3, h2d)                                                          \
	COPIES(F, hipMemcpyAtoH, 3, d2h)                                                                     \
	COPIES_ASYNC(F, hipMemcpyAtoHAsync, 3, d2h)                                                          \
	COPIES(F, hipMemcpyAtoD, 3, d2d)                                                                     \
	COPIES(F, hipMemcpyDtoA, 3, d2d)                                                                     \
	COPIES(F, hipMemcpyAtoA, 4, d2d)                                                                     \
	BOTH(COPIES_BY_KIND, F, hipMemcpyToSymbol, 2, 4)                                                     \
	BOTH(COPIES_BY_KIND_ASYNC, F, hipMemcpyToSymbolAsync, 2, 4)                                          \
	BOTH(COPIES_BY_KIND, F, hipMemcpyFromSymbol, 2, 4)                                                   \
	BOTH(COPIES_BY_KIND_ASYNC, F, hipMemcpyFromSymbolAsync, 2, 4)                                        \
	COPIES_BY_KIND(F, hipMemcpyToArray, 4, 5)                                                            \
	BOTH(COPIES_BY_KIND, F, hipMemcpyFromArray, 4, 5)                                                    \
	BOTH(COPIES_ROWS, F, hipMemcpy2D, 4, 6)                                                              \
	BOTH(COPIES_ROWS_ASYNC, F, hipMemcpy2DAsync, 4, 6)                                                   \
	BOTH(COPIES_ROWS, F, hipMemcpy2DToArray, 5, 7)                                                       \
	BOTH(COPIES_ROWS_ASYNC, F, hipMemcpy2DToArrayAsync, 5, 7)                                            \
	BOTH(COPIES_ROWS, F, hipMemcpy2DFromArray, 5, 7)                                                     \
	BOTH(COPIES_ROWS_ASYNC, F, hipMemcpy2DFromArrayAsync, 5, 7)                                          \
	COPIES_ROWS(F, hipMemcpy2DArrayToArray, 6, 8)                                                        \
	F(hipMemcpyParam2D, effect_copy_described)                                                           \
	F(hipMemcpyParam2DAsync, effect_copy_described, .stream = STREAM_AT(1))                              \
	F(hipDrvMemcpy2DUnaligned, effect_copy_described)                                                    \
	F(hipMemcpy3D, effect_copy_3d)                                                                       \
	F(hipMemcpy3D_spt, effect_copy_3d)                                                                   \
	F(hipMemcpy3DAsync, effect_copy_3d, .stream = STREAM_AT(1))                                          \
	F(hipMemcpy3DAsync_spt, effect_copy_3d, .stream = STREAM_AT(1))                                      \
	/* HIP_MEMCPY3D has other widths in later releases, which also have the others. */                   \
	F(hipDrvMemcpy3D, effect_copy_unsized)                                                               \
	F(hipDrvMemcpy3DAsync, effect_copy_unsized, .stream = STREAM_AT(1))                                  \
	F(hipMemcpy3DPeer, effect_copy_unsized)                                                              \
	F(hipMemcpy3DPeerAsync, effect_copy_unsized, .stream = STREAM_AT(1))                                 \
	F(hipMemcpyBatchAsync, effect_copy_unsized, .copies = 4, .stream = STREAM_AT(8))                     \
	F(hipMemcpy3DBatchAsync, effect_copy_unsized, .copies = 1, .stream = STREAM_AT(4))                   \
	F(hipDeviceSynchronize, effect_wait)                                                                 \
	F(hipCtxSynchronize, effect_wait)                                                                    \
	F(hipStreamSynchronize, effect_wait, .stream = STREAM_AT(0))                                         \
	F(hipStreamSynchronize_spt, effect_wait, .stream = STREAM_AT(0))                                     \
	F(hipEventSynchronize, effect_wait)                                                                  \
	F(hipDeviceReset, effect_reset)                                                                      \
	F(hipSetDevice, effect_set_device)                                                                   \
	F(hipCtxCreate, effect_context)                                                                      \
	F(hipCtxDestroy, effect_context)                                                                     \
	F(hipCtxSetCurrent, effect_context)                                                                  \
	F(hipCtxPushCurrent, effect_context)                                                                 \
	F(hipCtxPopCurrent, effect_context)                                                                  \
	F(hipStreamCreate, effect_stream_create)                                                             \
	F(hipStreamCreateWithFlags, effect_stream_create)                                                    \
	F(hipStreamCreateWithPriority, effect_stream_create)                                                 \
	F(hipExtStreamCreateWithCUMask, effect_stream_create)                                                \
	F(hipStreamDestroy, effect_stream_destroy)                                                           \
	F(hipStreamBeginCapture, effect_capture_begin)                                                       \
	F(hipStreamBeginCapture_spt, effect_capture_begin)                                                   \
	F(hipStreamBeginCaptureToGraph, effect_capture_begin)                                                \
	F(hipStreamEndCapture, effect_capture_end)                                                           \
	F(hipStreamEndCapture_spt, effect_capture_end)

#define LAUNCHES(F)                                                                                          \
	F(hipLaunchKernel, STREAM_AT(7))                                                                     \
	F(hipLaunchKernel_spt, STREAM_AT(7))                                                                 \
	F(hipLaunchKernelExC, STREAM_IN_CONFIG)                                                              \
	F(hipExtLaunchKernel, STREAM_AT(7))                                                                  \
	F(hipLaunchCooperativeKernel, STREAM_AT(7))                                                          \
	F(hipLaunchCooperativeKernel_spt, STREAM_AT(7))                                                      \
	F(hipLaunchCooperativeKernelMultiDevice, STREAMS_SEVERAL)                                            \
	F(hipExtLaunchMultiKernelMultiDevice, STREAMS_SEVERAL)                                               \
	F(hipModuleLaunchKernel, STREAM_AT(8))                                                               \
	F(hipModuleLaunchCooperativeKernel, STREAM_AT(8))                                                    \
	F(hipModuleLaunchCooperativeKernelMultiDevice, STREAMS_SEVERAL)                                      \
	F(hipDrvLaunchKernelEx, STREAM_IN_CONFIG)                                                            \
	F(hipExtModuleLaunchKernel, STREAM_AT(8))                                                            \
	F(hipHccModuleLaunchKernel, STREAM_AT(8))                                                            \
	/* The last two, as C++ has them in HIP 5. */                                                        \
	F(_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j,   \
	  STREAM_AT(8))                                                                                      \
	F(_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_,    \
	  STREAM_AT(8))                                                                                      \
	F(hipGraphLaunch, STREAM_AT(1))                                                                      \
	F(hipGraphLaunch_spt, STREAM_AT(1))

#define NAME(name, ...) name,
enum api { CALLS(NAME) LAUNCHES(NAME) } __attribute__((packed));

#define FUNCTION(name, what, ...) [name] = {.effect = what, ##__VA_ARGS__},
static const struct function functions[256] = {CALLS(FUNCTION)}; /* any api is within */

#define LAUNCH_STREAM(name, stream) [name] = stream,
static const __u8 launch_streams[256] = {LAUNCHES(LAUNCH_STREAM)};
