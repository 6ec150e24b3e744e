/* SPDX-License-Identifier: Apache-2.0 */
/* The handles that are valid, so that a call with one that is not fails as the driver's does, and crashes nothing. */
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include "soft.h"

struct handle {
	uint64_t of;
	enum handle_kind kind;
	int holders; /* how often it may be released */
};

static void *tree;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int compare(const void *a, const void *b)
{
	const struct handle *x = a, *y = b;

	if (x->of != y->of)
		return x->of < y->of ? -1 : 1;
	return (int)x->kind - (int)y->kind;
}

static struct handle *find(enum handle_kind kind, const void *of)
{
	struct handle key = {(uint64_t)of, kind, 0}, **found = tfind(&key, &tree, compare);

	return found ? *found : NULL;
}

void *hold_handle(enum handle_kind kind, void *of)
{
	struct handle *it;

	pthread_mutex_lock(&lock);
	it = find(kind, of);
	if (!it) {
		it = malloc(sizeof(*it));
		if (!it)
			abort();
		*it = (struct handle){(uint64_t)of, kind, 0};
		tsearch(it, &tree, compare);
	}
	it->holders++;
	pthread_mutex_unlock(&lock);
	return of;
}

int is_handle(enum handle_kind kind, const void *of)
{
	int found;

	pthread_mutex_lock(&lock);
	found = find(kind, of) != NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

int let_go_handle(enum handle_kind kind, const void *of)
{
	struct handle *it;

	pthread_mutex_lock(&lock);
	it = find(kind, of);
	if (it && !--it->holders) {
		tdelete(it, &tree, compare);
		free(it);
	}
	pthread_mutex_unlock(&lock);
	return it != NULL;
}
