/* SPDX-License-Identifier: Apache-2.0 */
/* What the libraries themselves count, independent of any probe: a file for each process and library in the folder that
 * SOFTGPU_COUNTS names, read by counts.py, and readable after a kill. Without that variable nobody sees the counts. */
#pragma once
#include <stdint.h>

struct count { /* 80 bytes, as counts.py reads them */
	char name[56];
	uint64_t calls, failures, bytes;
};

struct count *count_of(const char *name);
void add_bytes(const char *name, int64_t calls, int64_t bytes);
int are_kept(void); /* whether add_bytes() does anything: nobody would see it */

/* What a call is to return at once, 0 if nothing: SOFTGPU_FAIL. Waits for SOFTGPU_SLOW. */
int refusal(const char *function);

/* Whether a process can do no work any more after this error. */
int ends_context(long code);

/* First line of an exported function. Its results go through COUNTED(). */
#define COUNT                                                                                                \
	static struct count *count;                                                                          \
	if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE))                                                      \
		__atomic_store_n(&count, count_of(__func__), __ATOMIC_RELEASE);                              \
	__atomic_fetch_add(&count->calls, 1, __ATOMIC_RELAXED);                                              \
	int refused_ = refusal(__func__);                                                                    \
	if (refused_)                                                                                        \
		return COUNTED(refused_)
#define COUNTED(result)                                                                                      \
	({                                                                                                   \
		int result_ = (result);                                                                      \
		if (result_ && result_ != 600) /* not ready is no failure */                                 \
			__atomic_fetch_add(&count->failures, 1, __ATOMIC_RELAXED);                           \
		result_;                                                                                     \
	})
