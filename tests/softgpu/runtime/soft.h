/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the soft runtime share. As NVIDIA's does, it finds the driver by dlopen and cuGetProcAddress, and
 * each of its calls becomes calls of the driver's functions. */
#pragma once
#include "../counts.h"
#include "../cuda.h"

typedef int cudaError_t;
typedef struct {
	unsigned x, y, z;
} dim3;
enum { INVALID_SYMBOL = 13, COPY_H2H = 0, COPY_H2D, COPY_D2H, COPY_D2D, COPY_DEFAULT };

/* ---- connection.c ---- */
void *driver(const char *name);
#define D(name)                                                                                              \
	({                                                                                                   \
		static void *function_;                                                                      \
		if (!function_)                                                                              \
			function_ = driver(#name);                                                           \
		(__typeof__(&name))function_;                                                                \
	})
cudaError_t initialized(void); /* 0, or the error of all calls: that of cuInit(), in the child of a fork another */
#define WITHOUT_CONTEXT(name, ...) COUNTED(kept(initialized() ?: D(name)(__VA_ARGS__)))

/* ---- errors.c ---- */
cudaError_t kept(cudaError_t code); /* what cudaGetLastError will give */

/* ---- device.c ---- */
int chosen_device(void);
CUcontext context_of(int device); /* NULL without memory for it */
cudaError_t bind_thread(void); /* a thread without a context gets the chosen device's */
#define CALL(name, ...) COUNTED(kept(bind_thread() ?: D(name)(__VA_ARGS__)))

/* ---- kernels.c ---- */
CUfunction function_of(const void *kernel); /* loads its module at the first call on a device */
