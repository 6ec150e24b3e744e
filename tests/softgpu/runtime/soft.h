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
extern __thread int own_default; /* 1 in functions with the suffix _ptsz or _ptds: they call the driver's of that suffix */
void *driver(const char *name);
#define D(name)                                                                                              \
	({                                                                                                   \
		static void *functions_[2];                                                                  \
		if (!functions_[own_default])                                                                \
			functions_[own_default] = driver(#name);                                             \
		(__typeof__(&name))functions_[own_default];                                                  \
	})
#define OWN_DEFAULT(name, parameters, ...)                                                                   \
	API cudaError_t name parameters                                                                      \
	{                                                                                                    \
		COUNT;                                                                                       \
		own_default = 1;                                                                             \
		cudaError_t code_ = COUNTED(__VA_ARGS__);                                                    \
		own_default = 0;                                                                             \
		return code_;                                                                                \
	}
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
struct launch {
	dim3 grid, block;
	size_t shared;
	CUstream stream;
	void *attributes;
	unsigned count;
};
CUfunction function_of(const void *kernel); /* loads its module at the first call on a device */
cudaError_t find_variable(void **to, const void *host);
CUlaunch launch_of(const struct launch *it);

/* ---- copies.c ---- */
typedef struct {
	void *to;
	size_t to_pitch;
	const void *from;
	size_t from_pitch, width, height;
} rows;
cudaError_t copy_rows(rows it, int kind, CUstream stream);
