/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libcufile (GPUDirect Storage): its names, signatures and structures, with host memory and pread() and
 * pwrite(). Vectors are made of single reads and writes, asynchronous calls and batches are done at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define MOST_HANDLES 128
#define INVALID_VALUE 5022
#define NOT_REGISTERED 5027

typedef void *CUfileHandle_t;
typedef struct {
	int err, cu_err;
} CUfileError_t;
typedef struct {
	int type;
	union {
		int fd;
		void *handle;
	} handle;
	const void *fs_ops;
} CUfileDescr_t;
typedef struct {
	int mode;
	struct {
		void *devPtr_base;
		off_t file_offset, devPtr_offset;
		size_t size;
	} batch;
	CUfileHandle_t fh;
	int opcode;
	void *cookie;
} CUfileIOParams_t;
_Static_assert(sizeof(CUfileIOParams_t) == 64, "CUfileIOParams_t");
typedef struct {
	void *base;
	size_t len;
} CUfileIOVec_t;

static struct handle {
	int used, fd;
} handles[MOST_HANDLES];
static __thread int failure;
static __thread uint64_t stall;

/* Makes the next call of this thread fail: with a CUfileOpError, or with errno where that is negative. */
void standin_fail(int code)
{
	failure = code;
}

/* Makes each read and write of this thread take so long. */
void standin_stall(uint64_t ns)
{
	stall = ns;
}

static int failing(void)
{
	int code = failure;

	failure = 0;
	return code;
}

static struct handle *handle_of(CUfileHandle_t fh)
{
	struct handle *handle = fh;

	return handle >= handles && handle < handles + MOST_HANDLES && handle->used ? handle : NULL;
}

static ssize_t begin(CUfileHandle_t fh)
{
	struct timespec pause = {stall / 1000000000, stall % 1000000000};
	int code = failing();

	nanosleep(&pause, NULL);
	if (code < 0) {
		errno = -code;
		return -1;
	}
	return code ? -code : handle_of(fh) ? 0 : -NOT_REGISTERED;
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr)
{
	int code = failing();

	if (code)
		return (CUfileError_t){code, 0};
	for (int i = 0; i < MOST_HANDLES; i++) {
		if (!__sync_bool_compare_and_swap(&handles[i].used, 0, 1))
			continue;
		handles[i].fd = descr->handle.fd;
		*fh = &handles[i];
		return (CUfileError_t){0, 0};
	}
	return (CUfileError_t){INVALID_VALUE, 0};
}

void cuFileHandleDeregister(CUfileHandle_t fh)
{
	struct handle *handle = handle_of(fh);

	if (handle)
		handle->used = 0;
}

ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t at, off_t offset)
{
	ssize_t failed = begin(fh);

	return failed ? failed : pread(handle_of(fh)->fd, (char *)base + offset, size, at);
}

ssize_t cuFileWrite(CUfileHandle_t fh, const void *base, size_t size, off_t at, off_t offset)
{
	ssize_t failed = begin(fh);

	return failed ? failed : pwrite(handle_of(fh)->fd, (const char *)base + offset, size, at);
}

ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t count, off_t at, unsigned flags)
{
	ssize_t all = 0, done;

	(void)flags;
	for (size_t i = 0; i < count; i++, all += done)
		if ((done = cuFileRead(fh, iov[i].base, iov[i].len, at + all, 0)) < 0)
			return done;
	return all;
}

ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t count, off_t at, unsigned flags)
{
	ssize_t all = 0, done;

	(void)flags;
	for (size_t i = 0; i < count; i++, all += done)
		if ((done = cuFileWrite(fh, iov[i].base, iov[i].len, at + all, 0)) < 0)
			return done;
	return all;
}

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *at, off_t *offset,
			      ssize_t *done, void *stream)
{
	int code = failing();

	(void)stream;
	if (!code)
		*done = handle_of(fh) ? pread(handle_of(fh)->fd, (char *)base + *offset, *size, *at) : -1;
	return (CUfileError_t){code, 0};
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *at, off_t *offset,
			       ssize_t *done, void *stream)
{
	int code = failing();

	(void)stream;
	if (!code)
		*done = handle_of(fh) ? pwrite(handle_of(fh)->fd, (char *)base + *offset, *size, *at) : -1;
	return (CUfileError_t){code, 0};
}

CUfileError_t cuFileBatchIOSubmit(void *batch, unsigned count, CUfileIOParams_t *entries, unsigned flags)
{
	int code = failing();

	(void)batch, (void)flags;
	for (unsigned i = 0; !code && i < count; i++) {
		struct handle *handle = handle_of(entries[i].fh);
		char *memory = (char *)entries[i].batch.devPtr_base + entries[i].batch.devPtr_offset;
		ssize_t done;

		if (!handle)
			continue;
		done = entries[i].opcode
			   ? pwrite(handle->fd, memory, entries[i].batch.size, entries[i].batch.file_offset)
			   : pread(handle->fd, memory, entries[i].batch.size, entries[i].batch.file_offset);
		(void)done; /* for cuFileBatchIOGetStatus, which nobody calls here */
	}
	return (CUfileError_t){code, 0};
}
