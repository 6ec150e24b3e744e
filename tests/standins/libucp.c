/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libucp: names, signatures and structures of UCX 1.22. Nothing is sent: the caller chooses the results. */
#include <stddef.h>
#include <stdint.h>

static __thread intptr_t result;

/* What the next call of this thread returns: 0, a status, or the address of a request. */
void standin_returns(intptr_t value)
{
	result = value;
}

#define NEXT                                                                                                 \
	({                                                                                                   \
		intptr_t next_ = result;                                                                     \
		result = 0;                                                                                  \
		(void *)next_;                                                                               \
	})

#define SENDS(name)                                                                                          \
	void *name(void *ep, const void *buffer, size_t count, uint64_t tag, const void *param)              \
	{                                                                                                    \
		(void)ep, (void)buffer, (void)count, (void)tag, (void)param;                                 \
		return NEXT;                                                                                 \
	}
#define MOVES(name)                                                                                          \
	void *name(void *ep, const void *buffer, size_t count, uint64_t a, uint64_t b, const void *param)    \
	{                                                                                                    \
		(void)ep, (void)buffer, (void)count, (void)a, (void)b, (void)param;                          \
		return NEXT;                                                                                 \
	}
#define CONTROLS(name)                                                                                       \
	void *name(void *object, const void *param)                                                          \
	{                                                                                                    \
		(void)object, (void)param;                                                                   \
		return NEXT;                                                                                 \
	}

SENDS(ucp_tag_send_nbx)
SENDS(ucp_tag_send_sync_nbx)
SENDS(ucp_tag_msg_recv_nbx)
SENDS(ucp_stream_recv_nbx)
MOVES(ucp_put_nbx)
MOVES(ucp_get_nbx)
MOVES(ucp_tag_recv_nbx)
CONTROLS(ucp_ep_close_nbx)
CONTROLS(ucp_ep_flush_nbx)
CONTROLS(ucp_worker_flush_nbx)

void *ucp_stream_send_nbx(void *ep, const void *buffer, size_t count, const void *param)
{
	(void)ep, (void)buffer, (void)count, (void)param;
	return NEXT;
}

void *ucp_am_send_nbx(void *ep, unsigned id, const void *header, size_t header_length, const void *buffer,
		      size_t count, const void *param)
{
	(void)ep, (void)id, (void)header, (void)header_length, (void)buffer, (void)count, (void)param;
	return NEXT;
}

void *ucp_am_recv_data_nbx(void *worker, void *data, void *buffer, size_t count, const void *param)
{
	(void)worker, (void)data, (void)buffer, (void)count, (void)param;
	return NEXT;
}

signed char ucp_ep_create(void *worker, const void *params, void **ep)
{
	(void)worker, (void)params, (void)ep;
	return (signed char)(intptr_t)NEXT;
}

/* Of the older interface, which calls the newer. */
void *ucp_tag_send_nb(void *ep, const void *buffer, size_t count, uint64_t datatype, uint64_t tag, void *callback)
{
	struct {
		uint32_t fields, flags;
		uint64_t request, callback, datatype;
	} param = {1 << 3, 0, 0, (uintptr_t)callback, datatype};

	return ucp_tag_send_nbx(ep, buffer, count, tag, &param);
}
