/* What the programs of these tests begin with: a device by its name, or an end. */
#pragma once
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **found = ibv_get_device_list(NULL);

	for (; found && *found; found++)
		if (!strcmp(ibv_get_device_name(*found), name))
			return ibv_open_device(*found);
	return NULL;
}
