/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML reports of the soft GPUs, from what the processes hold and from what the soft driver counts in each: the
 * stand-in of NVML reads these lines as if they were in its scenario. The key `softgpu` names the folder. */
#pragma once
#include "counts.h"
#include "gpus.h"
#include <dirent.h>
#include <inttypes.h>

enum { SOFT_EVENTS = 64, FIRST_SOFT_EVENT = 100000, SOFT_COUNTS = 1024 };
#define WINDOW_NS 250000000ull       /* that utilization is measured over, at least */

struct soft_use { /* of a GPU by a process */
	unsigned pid, percent;
	uint64_t busy_ns, at_ns;
};

static struct soft_use soft_uses[SOFT_PROCESSES][SOFT_GPUS];
static struct {
	unsigned pid;
	int gpu, number;
} soft_events[SOFT_EVENTS];
static int soft_event_count;

static uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static const struct count *soft_row(const struct count *rows, size_t many, const char *name, int gpu)
{
	char wanted[sizeof rows->name];

	snprintf(wanted, sizeof wanted, "%s %d", name, gpu);
	for (size_t i = 0; i < many; i++)
		if (!strcmp(rows[i].name, wanted))
			return &rows[i];
	return NULL;
}

/* Share of time, in percent, that kernels of a process ran on a GPU. `busy` has ns, and as its calls the time
 * until which it counts them, which may yet come. */
static unsigned soft_percent(unsigned pid, int gpu, const struct count *busy)
{
	uint64_t now = monotonic_ns(), ns = busy ? busy->bytes : 0;
	struct soft_use *use = NULL;

	if (busy && busy->calls > now)
		ns -= busy->calls - now;
	for (int i = 0; i < SOFT_PROCESSES && !use; i++)
		if (soft_uses[i][gpu].pid == pid || !soft_uses[i][gpu].pid)
			use = &soft_uses[i][gpu];
	if (!use)
		return 0;
	if (use->pid != pid)
		*use = (struct soft_use){pid, 0, ns, now};
	if (now - use->at_ns >= WINDOW_NS)
		*use = (struct soft_use){pid, (ns - use->busy_ns) * 100 / (now - use->at_ns), ns, now};
	return use->percent;
}

/* An Xid is reported once for each time that it is counted. */
static void soft_xid(unsigned pid, const struct count *row)
{
	int gpu, number;
	unsigned known = 0;

	if (sscanf(row->name, "xid %d %d", &gpu, &number) != 2)
		return;
	for (int i = 0; i < soft_event_count; i++)
		known += soft_events[i].pid == pid && soft_events[i].gpu == gpu && soft_events[i].number == number;
	for (; known < row->calls && soft_event_count < SOFT_EVENTS; known++) {
		soft_events[soft_event_count].pid = pid;
		soft_events[soft_event_count].gpu = gpu;
		soft_events[soft_event_count++].number = number;
	}
}

static size_t soft_counts(const char *folder, unsigned pid, struct count *rows)
{
	char path[512];
	FILE *file;
	size_t many = 0;

	snprintf(path, sizeof path, "%s/%u.libcuda", folder, pid);
	file = fopen(path, "rb");
	if (file) {
		many = fread(rows, sizeof *rows, SOFT_COUNTS, file);
		fclose(file);
	}
	return many;
}

/* Also of processes that have ended. */
static void soft_xids(const char *folder)
{
	static struct count rows[SOFT_COUNTS];
	DIR *found = opendir(folder);
	unsigned pid;
	char end[8];

	for (struct dirent *it; found && (it = readdir(found));) {
		if (sscanf(it->d_name, "%u.%7s", &pid, end) != 2 || strcmp(end, "libcuda"))
			continue;
		for (size_t i = soft_counts(folder, pid, rows); i--;)
			soft_xid(pid, &rows[i]);
	}
	if (found)
		closedir(found);
	for (int i = 0; i < soft_event_count; i++)
		add_line("event.%d=%d 8 %d", FIRST_SOFT_EVENT + i, soft_events[i].gpu, soft_events[i].number);
}

struct soft_sum { /* of a GPU */
	int processes;
	uint64_t used;
	unsigned percent;
};

static void soft_process(const char *folder, const struct holder *it, struct soft_sum *sums)
{
	static struct count rows[SOFT_COUNTS];
	size_t many = soft_counts(folder, it->pid, rows);

	for (int gpu = 0; gpu < SOFT_GPUS; gpu++) {
		if (!it->bytes[gpu])
			continue;
		unsigned percent = soft_percent(it->pid, gpu, soft_row(rows, many, "busy", gpu));
		add_line("gpu%d.process.%d=%d compute %" PRIu64 " %u 0", gpu, sums[gpu].processes++, it->pid, it->bytes[gpu],
			 percent);
		sums[gpu].used += it->bytes[gpu];
		sums[gpu].percent += percent;
	}
}

/* Of every GPU, also of one that nobody uses. */
static void add_soft_gpus(const char *folder)
{
	static struct holdings all;
	struct soft_sum sums[SOFT_GPUS] = {0};
	char path[512];
	int file;

	snprintf(path, sizeof path, "%s/gpus", folder);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0 || read(file, &all, sizeof all) != sizeof all || !all.capacity)
		memset(&all, 0, sizeof all);
	for (unsigned i = 0; i < all.rows; i++)
		if (all.of[i].pid && is_held(file, i))
			soft_process(folder, &all.of[i], sums);
	if (file >= 0)
		close(file);
	for (int gpu = 0; gpu < SOFT_GPUS; gpu++) {
		add_line("gpu%d.memory_used=%" PRIu64, gpu, sums[gpu].used);
		add_line("gpu%d.utilization=%u", gpu, sums[gpu].percent < 100 ? sums[gpu].percent : 100);
	}
	add_line("gpu.name=" GPU_NAME);
	add_line("gpu.memory_total=%" PRIu64, all.capacity ? all.capacity : bytes_of_gpu());
	add_line("gpu.memory_reserved=0");
	soft_xids(folder);
}
