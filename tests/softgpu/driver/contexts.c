/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "../gpus.h"
#include "soft.h"

static struct context primaries[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of who holds a primary context */
static __thread CUcontext stack[128];
static __thread int depth;

static int is_primary(CUcontext context)
{
	return context >= primaries && context < primaries + MAX_DEVICES;
}

CUcontext bound(void)
{
	return depth ? stack[depth - 1] : NULL;
}

CUcontext current(void)
{
	return HOLLOW && !depth ? primaries : bound();
}

int is_alive(CUcontext context)
{
	return HOLLOW || (context && !__atomic_load_n(&context->destroyed, __ATOMIC_RELAXED));
}

/* Of a primary context that nobody holds there is nothing. */
CUresult unusable(void)
{
	CUcontext context = current();

	if (!context)
		return INVALID_CONTEXT;
	if (is_primary(context) && !HOLLOW && !__atomic_load_n(&context->holders, __ATOMIC_RELAXED))
		return CONTEXT_DESTROYED;
	return is_alive(context) ? SUCCESS : CONTEXT_DESTROYED;
}

static void set_limits(CUcontext context)
{
	static const size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 128};

	for (unsigned i = 0; i < sizeof(limits) / sizeof(*limits); i++)
		context->limits[i] = limits[i];
}

/* Those of a hollow library need no memory. */
static int take_room(CUdevice device)
{
	return HOLLOW || take(physical(device), CONTEXT_BYTES);
}

static void give_room(CUdevice device)
{
	if (!HOLLOW)
		give(physical(device), CONTEXT_BYTES);
}

static CUresult retain(CUcontext context, CUdevice device)
{
	int room;

	pthread_mutex_lock(&lock);
	room = context->holders || take_room(device);
	if (room && !context->holders++) {
		context->device = device;
		set_limits(context);
	}
	pthread_mutex_unlock(&lock);
	return room ? SUCCESS : OUT_OF_MEMORY;
}

static void end(CUcontext context)
{
	forget_peers(context);
	end_events(context);
	end_streams(context);
	release_context(context);
}

static CUresult let_go(CUcontext context)
{
	int held;

	pthread_mutex_lock(&lock);
	held = context->holders > 0;
	if (held && !--context->holders) {
		end(context);
		give_room(context->device);
	}
	pthread_mutex_unlock(&lock);
	return held ? SUCCESS : INVALID_CONTEXT;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	*context = &primaries[device];
	return COUNTED(retain(*context, device));
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	return COUNTED(let_go(&primaries[device]));
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	*flags = primaries[device].flags;
	*active = primaries[device].holders > 0;
	return COUNTED(SUCCESS);
}

/* A context of the program's own, which becomes the thread's current one. */
static CUresult create(CUcontext *context, unsigned flags, CUdevice device)
{
	if (!context)
		return INVALID_VALUE;
	if (device < 0 || device >= device_count())
		return INVALID_DEVICE;
	if (depth == sizeof(stack) / sizeof(*stack))
		return OUT_OF_MEMORY;
	if (!take_room(device))
		return OUT_OF_MEMORY;
	*context = calloc(1, sizeof(**context));
	(*context)->device = device;
	(*context)->flags = flags;
	set_limits(*context);
	stack[depth++] = *context;
	return SUCCESS;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	COUNT;
	return COUNTED(create(context, flags, device));
}

API CUresult cuCtxCreate_v3(CUcontext *context, const void *affinities, int count_, unsigned flags, CUdevice device)
{
	COUNT;
	(void)affinities, (void)count_;
	return COUNTED(create(context, flags, device));
}

API CUresult cuCtxCreate_v4(CUcontext *context, const void *parameters, unsigned flags, CUdevice device)
{
	COUNT;
	(void)parameters;
	return COUNTED(create(context, flags, device));
}

/* What was allocated in it goes with it. The structure stays: other threads may have it on their stacks. */
API CUresult cuCtxDestroy_v2(CUcontext context)
{
	COUNT;
	if (!context || is_primary(context) || __atomic_exchange_n(&context->destroyed, 1, __ATOMIC_RELAXED))
		return COUNTED(INVALID_CONTEXT);
	if (bound() == context)
		depth--;
	end(context);
	give_room(context->device);
	return COUNTED(SUCCESS);
}

/* A call failed in a way that ends the context: the GPU reports an Xid too. */
void faulted(int code)
{
	int xid = code == 700 ? 31 : code == 214 ? 48 : code == 220 ? 74 : 13;
	char name[24];

	snprintf(name, sizeof(name), "xid %d %d", current() ? physical(current()->device) : 0, xid);
	add_bytes(name, 1, 0);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	primaries[device].flags = flags;
	return COUNTED(SUCCESS);
}

/* Takes away what was allocated, and leaves the context to those who hold it. */
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	COUNT;
	if (device < 0 || device >= device_count())
		return COUNTED(INVALID_DEVICE);
	end(&primaries[device]);
	return COUNTED(SUCCESS);
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
	COUNT;
	*context = bound();
	return COUNTED(SUCCESS);
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
	COUNT;
	if (context && !is_alive(context))
		return COUNTED(INVALID_CONTEXT);
	depth -= depth > 0;
	if (context)
		stack[depth++] = context;
	return COUNTED(SUCCESS);
}

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	COUNT;
	if (!context || depth == sizeof(stack) / sizeof(*stack))
		return COUNTED(INVALID_VALUE);
	if (!is_alive(context))
		return COUNTED(INVALID_CONTEXT);
	stack[depth++] = context;
	return COUNTED(SUCCESS);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	COUNT;
	if (!bound())
		return COUNTED(INVALID_CONTEXT);
	depth--;
	if (context)
		*context = stack[depth];
	return COUNTED(SUCCESS);
}

API CUresult cuCtxSynchronize(void)
{
	COUNT;
	NEED_CONTEXT;
	NEED_NO_CAPTURE;
	wait_for_streams(current());
	wait_until(__atomic_load_n(&current()->busy_until, __ATOMIC_RELAXED));
	return COUNTED(SUCCESS);
}
