/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The functions of AMD's libamdhip64 that are probed, and what each does. Names and arguments are those of
 * hip_runtime_api.h, hip_ext.h and amd_hip_runtime_pt_api.h of HIP 5.2; of later releases where 5.2 has no such function. */
#pragma once
struct call;
static void abandon(const struct call *call);
#define ABANDON(call) abandon(call)
static void replace_program(__u32 tgid);
#define REPLACED(tgid) replace_program(tgid)
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
	effect_reset
} __attribute__((packed));

struct function {
	enum effect effect;
	enum memory memory;
	enum direction direction;
	__u8 bytes_at;		 /* which argument has the bytes of a copy, or of one of its rows */
	__u8 height_at, kind_at; /* 0: none */
};

/* F(name, initializers of struct function) */
#define ALLOCATES(F, name, kind) F(name, effect_allocate, .memory = memory_##kind)
#define FREES(F, name, kind) F(name, effect_free, .memory = memory_##kind)
#define COPIES(F, name, at, way) F(name, effect_copy, .bytes_at = at, .direction = direction_##way)
#define COPIES_BY_KIND(F, name, at, kind) F(name, effect_copy, .bytes_at = at, .kind_at = kind)
#define COPIES_ROWS(F, name, at, kind)                                                                       \
	F(name, effect_copy, .bytes_at = at, .height_at = at + 1, .kind_at = kind)
#define BOTH(M, F, name, ...)                                                                                \
	M(F, name, __VA_ARGS__) M(F, name##_spt, __VA_ARGS__) /* _spt: of the thread's stream */

#define CALLS(F)                                                                                             \
	ALLOCATES(F, hipMalloc, device)                                                                      \
	ALLOCATES(F, hipExtMallocWithFlags, device)                                                          \
	ALLOCATES(F, hipMallocManaged, managed)                                                              \
	ALLOCATES(F, hipMallocAsync, pool)                                                                   \
	ALLOCATES(F, hipMallocFromPoolAsync, pool)                                                           \
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
	BOTH(COPIES_BY_KIND, F, hipMemcpyAsync, 2, 3)                                                        \
	COPIES_BY_KIND(F, hipMemcpyWithStream, 2, 3)                                                         \
	COPIES(F, hipMemcpyHtoD, 2, h2d)                                                                     \
	COPIES(F, hipMemcpyHtoDAsync, 2, h2d)                                                                \
	COPIES(F, hipMemcpyDtoH, 2, d2h)                                                                     \
	COPIES(F, hipMemcpyDtoHAsync, 2, d2h)                                                                \
	COPIES(F, hipMemcpyDtoD, 2, d2d)                                                                     \
	COPIES(F, hipMemcpyDtoDAsync, 2, d2d)                                                                \
	COPIES(F, hipMemcpyPeer, 4, d2d)                                                                     \
	COPIES(F, hipMemcpyPeerAsync, 4, d2d)                                                                \
	COPIES(F, hipMemcpyHtoA, 3, h2d)                                                                     \
	COPIES(F, hipMemcpyHtoAAsync, 3, h2d)                                                                \
	COPIES(F, hipMemcpyAtoH, 3, d2h)                                                                     \
	COPIES(F, hipMemcpyAtoHAsync, 3, d2h)                                                                \
	COPIES(F, hipMemcpyAtoD, 3, d2d)                                                                     \
	COPIES(F, hipMemcpyDtoA, 3, d2d)                                                                     \
	COPIES(F, hipMemcpyAtoA, 4, d2d)                                                                     \
	BOTH(COPIES_BY_KIND, F, hipMemcpyToSymbol, 2, 4)                                                     \
	BOTH(COPIES_BY_KIND, F, hipMemcpyToSymbolAsync, 2, 4)                                                \
	BOTH(COPIES_BY_KIND, F, hipMemcpyFromSymbol, 2, 4)                                                   \
	BOTH(COPIES_BY_KIND, F, hipMemcpyFromSymbolAsync, 2, 4)                                              \
	COPIES_BY_KIND(F, hipMemcpyToArray, 4, 5)                                                            \
	BOTH(COPIES_BY_KIND, F, hipMemcpyFromArray, 4, 5)                                                    \
	BOTH(COPIES_ROWS, F, hipMemcpy2D, 4, 6)                                                              \
	BOTH(COPIES_ROWS, F, hipMemcpy2DAsync, 4, 6)                                                         \
	BOTH(COPIES_ROWS, F, hipMemcpy2DToArray, 5, 7)                                                       \
	BOTH(COPIES_ROWS, F, hipMemcpy2DToArrayAsync, 5, 7)                                                  \
	BOTH(COPIES_ROWS, F, hipMemcpy2DFromArray, 5, 7)                                                     \
	BOTH(COPIES_ROWS, F, hipMemcpy2DFromArrayAsync, 5, 7)                                                \
	COPIES_ROWS(F, hipMemcpy2DArrayToArray, 6, 8)                                                        \
	F(hipMemcpyParam2D, effect_copy_described)                                                           \
	F(hipMemcpyParam2DAsync, effect_copy_described)                                                      \
	F(hipDrvMemcpy2DUnaligned, effect_copy_described)                                                    \
	F(hipMemcpy3D, effect_copy_3d)                                                                       \
	F(hipMemcpy3D_spt, effect_copy_3d)                                                                   \
	F(hipMemcpy3DAsync, effect_copy_3d)                                                                  \
	F(hipMemcpy3DAsync_spt, effect_copy_3d)                                                              \
	/* HIP_MEMCPY3D has other widths in later releases, which also have the others. */                   \
	F(hipDrvMemcpy3D, effect_copy_unsized)                                                               \
	F(hipDrvMemcpy3DAsync, effect_copy_unsized)                                                          \
	F(hipMemcpy3DPeer, effect_copy_unsized)                                                              \
	F(hipMemcpy3DPeerAsync, effect_copy_unsized)                                                         \
	F(hipMemcpyBatchAsync, effect_copy_unsized)                                                          \
	F(hipMemcpy3DBatchAsync, effect_copy_unsized)                                                        \
	F(hipDeviceSynchronize, effect_wait)                                                                 \
	F(hipCtxSynchronize, effect_wait)                                                                    \
	F(hipStreamSynchronize, effect_wait)                                                                 \
	F(hipStreamSynchronize_spt, effect_wait)                                                             \
	F(hipEventSynchronize, effect_wait)                                                                  \
	F(hipDeviceReset, effect_reset)

#define LAUNCHES(F)                                                                                          \
	F(hipLaunchKernel)                                                                                   \
	F(hipLaunchKernel_spt)                                                                               \
	F(hipLaunchKernelExC)                                                                                \
	F(hipExtLaunchKernel)                                                                                \
	F(hipLaunchCooperativeKernel)                                                                        \
	F(hipLaunchCooperativeKernel_spt)                                                                    \
	F(hipLaunchCooperativeKernelMultiDevice)                                                             \
	F(hipExtLaunchMultiKernelMultiDevice)                                                                \
	F(hipModuleLaunchKernel)                                                                             \
	F(hipModuleLaunchCooperativeKernel)                                                                  \
	F(hipModuleLaunchCooperativeKernelMultiDevice)                                                       \
	F(hipDrvLaunchKernelEx)                                                                              \
	F(hipExtModuleLaunchKernel)                                                                          \
	F(hipHccModuleLaunchKernel)                                                                          \
	/* The last two, as C++ has them in HIP 5. */                                                        \
	F(_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j)   \
	F(_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_)    \
	F(hipGraphLaunch)                                                                                    \
	F(hipGraphLaunch_spt)

#define NAME(name, ...) name,
enum api { CALLS(NAME) LAUNCHES(NAME) } __attribute__((packed));

#define FUNCTION(name, what, ...) [name] = {.effect = what, ##__VA_ARGS__},
static const struct function functions[256] = {CALLS(FUNCTION)}; /* any api is within */
