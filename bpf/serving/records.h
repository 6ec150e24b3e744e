/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What user space gets: requests that have ended, and fields of HTTP/2. */
#pragma once
#include "http2.h"

EVENTS(requests, union record, 1 << 22);

/* Requests that ended and are not counted; requests_lost has other records too. */
__u64 requests_uncounted = 0;

/* Leaves the thread of a request that ends only where this one is the same. */
static __always_inline void keep_thread(struct request *request)
{
	if (request->tid != (__u32)bpf_get_current_pid_tgid())
		request->tid = 0;
}

static __always_inline void send_request(struct request *request)
{
	if (!bpf_ringbuf_output(&requests, request, sizeof(*request), 0))
		return;
	add(&requests_lost, 1);
	add(&requests_uncounted, 1);
}
