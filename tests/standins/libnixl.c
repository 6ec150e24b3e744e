/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libnixl and its plugins: the symbols, signatures and structures of nixlAgent and of backends in NIXL 1.5,
 * with libstdc++'s strings and vectors. Nothing is moved: the caller chooses how each call ends. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ENGINE(name)                                                                                         \
	_ZNK##name##8postXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERP15nixlBackendReqHPK23nixlBackendOptionalArgs
#define postXferReq _ZNK9nixlAgent11postXferReqEP12nixlXferReqHPK21nixlAgentOptionalArgs
#define getXferStatus _ZNK9nixlAgent13getXferStatusEP12nixlXferReqH
#define releaseXferReq _ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH
#define registerMem _ZN9nixlAgent11registerMemERK12nixlDescListI12nixlBlobDescEPK21nixlAgentOptionalArgs
#define NOT_POSTED (-1)

struct descriptor {
	uint64_t address, length, device;
	void *metadata;
};
struct list {
	const void *methods;
	int type;
	struct descriptor *begin, *end, *capacity;
};
struct string {
	const char *text;
	size_t length;
	char own[16];
};

enum backend { UCX, UCX_MO, GDS, NOT_PROBED };
struct request {
	int operation, posts, status; /* what postXferReq and getXferStatus return */
	enum backend backend;
	struct list local;
	struct string peer;
};

#define POST                                                                                                 \
	(const void *engine, const int *operation, const struct list *local, const struct list *remote,      \
	 const struct string *peer, void **handle, const void *arguments)
#define USED (void)engine, (void)operation, (void)local, (void)remote, (void)peer, (void)handle, (void)arguments

int ENGINE(13nixlUcxEngine) POST
{
	USED;
	return 1;
}

int ENGINE(13nixlGdsEngine) POST
{
	USED;
	return 1;
}

/* Is made of others, and calls each. */
int ENGINE(15nixlUcxMoEngine) POST
{
	struct list half = *local;

	half.end = half.begin + (local->end - local->begin) / 2;
	ENGINE(13nixlUcxEngine)(engine, operation, &half, remote, peer, handle, arguments);
	return ENGINE(13nixlUcxEngine)(engine, operation, &half, remote, peer, handle, arguments);
}

int postXferReq(const void *agent, struct request *request, const void *arguments)
{
	const struct list *local = &request->local;

	if (request->operation < 0) /* refused before a backend is called */
		return request->posts;
	if (request->backend == UCX)
		ENGINE(13nixlUcxEngine)(agent, &request->operation, local, local, &request->peer, NULL, arguments);
	else if (request->backend == UCX_MO)
		ENGINE(15nixlUcxMoEngine)(agent, &request->operation, local, local, &request->peer, NULL, arguments);
	else if (request->backend == GDS)
		ENGINE(13nixlGdsEngine)(agent, &request->operation, local, local, &request->peer, NULL, arguments);
	return request->posts;
}

int getXferStatus(const void *agent, struct request *request)
{
	(void)agent;
	return request ? request->status : NOT_POSTED;
}

int releaseXferReq(const void *agent, struct request *request)
{
	(void)agent;
	return request->status < -1 ? request->status : 0;
}

int registerMem(const void *agent, const void *list, const void *arguments)
{
	(void)agent, (void)arguments;
	return list ? 0 : -2;
}

/* A request of so many descriptors of so many bytes each. It is never freed. */
struct request *standin_request(int operation, int backend, size_t count, size_t length, const char *peer)
{
	struct request *request = calloc(1, sizeof(*request));

	request->operation = operation;
	request->backend = backend;
	request->posts = request->status = 1;
	request->local.begin = calloc(count, sizeof(struct descriptor));
	request->local.end = request->local.capacity = request->local.begin + count;
	for (size_t i = 0; i < count; i++)
		request->local.begin[i] = (struct descriptor){1, length, 1, request};
	request->peer.text = strdup(peer);
	request->peer.length = strlen(peer);
	return request;
}

void standin_returns(struct request *request, int posts, int status)
{
	request->posts = posts;
	request->status = status;
}

/* Points the descriptors at nothing, as a process may that wants to mislead. */
void standin_mislead(struct request *request, uint64_t begin, uint64_t end)
{
	request->local.begin = (void *)begin;
	request->local.end = (void *)end;
}
