/* SPDX-License-Identifier: Apache-2.0 */
/* Which contexts may use the memory of which others. */
#include <pthread.h>
#include <stdlib.h>
#include "soft.h"

struct peers {
	CUcontext from, to;
	struct peers *next;
};
static struct peers *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct peers **find(CUcontext from, CUcontext to)
{
	struct peers **at = &all;

	while (*at && ((*at)->from != from || (*at)->to != to))
		at = &(*at)->next;
	return at;
}

static void drop(struct peers **at)
{
	struct peers *it = *at;

	*at = it->next;
	free(it);
}

/* The context has ended. */
void forget_peers(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (struct peers **at = &all; *at;)
		if ((*at)->from == context || (*at)->to == context)
			drop(at);
		else
			at = &(*at)->next;
	pthread_mutex_unlock(&lock);
}

static CUresult enable(CUcontext peer, unsigned flags)
{
	struct peers *it;
	int known;

	if (unusable() || !is_alive(peer) || peer == current())
		return unusable() ?: INVALID_CONTEXT;
	if (flags)
		return INVALID_VALUE;
	if (peer->device == current()->device)
		return PEER_ACCESS_UNSUPPORTED;
	it = malloc(sizeof(*it));
	pthread_mutex_lock(&lock);
	known = *find(current(), peer) != NULL;
	*it = (struct peers){current(), peer, all};
	if (!known)
		all = it;
	pthread_mutex_unlock(&lock);
	if (known)
		free(it);
	return known ? PEER_ACCESS_ALREADY_ENABLED : SUCCESS;
}

static CUresult disable(CUcontext peer)
{
	struct peers **at;
	int known;

	if (unusable() || !is_alive(peer))
		return unusable() ?: INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	at = find(current(), peer);
	known = *at != NULL;
	if (known)
		drop(at);
	pthread_mutex_unlock(&lock);
	return known ? SUCCESS : PEER_ACCESS_NOT_ENABLED;
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	COUNT;
	return COUNTED(HOLLOW ? SUCCESS : enable(peer, flags));
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	COUNT;
	return COUNTED(HOLLOW ? SUCCESS : disable(peer));
}
