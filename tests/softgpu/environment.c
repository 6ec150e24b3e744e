/* SPDX-License-Identifier: Apache-2.0 */
#include "environment.h"
#include <string.h>

extern char **environ;

static const char *const names[VARIABLES] = {"SOFTGPU_FAIL=", "SOFTGPU_SLOW=", "SOFTGPU_KERNEL_NS="};

/* What this thread found, and by what it sees that nobody has set or taken away a variable since. */
static __thread struct {
	char **all, *last, **at[VARIABLES], *entries[VARIABLES];
	size_t count;
	struct variables values;
} found;

static int unchanged(void)
{
	if (!found.all || environ != found.all || environ[found.count] || environ[found.count - 1] != found.last)
		return 0;
	for (int i = 0; i < VARIABLES; i++)
		if (found.entries[i] && *found.at[i] != found.entries[i])
			return 0;
	return 1;
}

static void look(void)
{
	memset(&found, 0, sizeof(found));
	for (char **at = environ; at && *at; at++, found.count++)
		for (int i = 0; i < VARIABLES; i++)
			if (!found.entries[i] && !strncmp(*at, names[i], strlen(names[i]))) {
				found.at[i] = at;
				found.entries[i] = *at;
				found.values.set[i] = *at + strlen(names[i]);
			}
	if (found.count) {
		found.all = environ;
		found.last = environ[found.count - 1];
	}
}

const struct variables *variables(void)
{
	if (__builtin_expect(!unchanged(), 0))
		look();
	return &found.values;
}
