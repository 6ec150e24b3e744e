/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML reports of the soft GPUs, from what the soft driver counts in each process: the stand-in of NVML reads these
 * lines as if they were in its scenario. The key `softgpu` names the folder of the counts. */
#pragma once
#include "counts.h"
#include <dirent.h>
#include <inttypes.h>

enum { SOFT_GPUS = 16, SOFT_PROCESSES = 256, SOFT_EVENTS = 64, FIRST_SOFT_EVENT = 100000 };
#define CONTEXT_BYTES (512ull << 20) /* of a process on a GPU for each of its contexts there: story.py */
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

/* One that has ended, but that nobody has waited for, counts as ended. Read from a file that is open to everybody: the
 * exporter's child with NVML has no capabilities. */
static int lives(unsigned pid)
{
	char path[32], text[512];
	FILE *file;
	size_t length;
	const char *state;

	snprintf(path, sizeof path, "/proc/%u/stat", pid);
	file = fopen(path, "r");
	if (!file)
		return 0;
	length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = 0;
	state = strrchr(text, ')');
	return state && length && !strchr("ZX", state[2]);
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

static void soft_process(const char *path, unsigned pid, int *listed, uint64_t *used, unsigned *percent)
{
	static struct count rows[1024];
	FILE *file = fopen(path, "rb");
	size_t many = file ? fread(rows, sizeof *rows, 1024, file) : 0;
	char line[160];

	if (file)
		fclose(file);
	for (size_t i = 0; i < many; i++)
		soft_xid(pid, &rows[i]);
	for (int gpu = 0; gpu < SOFT_GPUS && lives(pid); gpu++) {
		const struct count *contexts = soft_row(rows, many, "context", gpu), *in_use = soft_row(rows, many, "gpu", gpu);
		if (!contexts || !contexts->calls)
			continue;
		uint64_t bytes = contexts->calls * CONTEXT_BYTES + (in_use ? in_use->bytes : 0);
		unsigned share = soft_percent(pid, gpu, soft_row(rows, many, "busy", gpu));
		snprintf(line, sizeof line, "gpu%d.process.%d=%u compute %" PRIu64 " %u 0", gpu, listed[gpu]++, pid, bytes, share);
		add_lines(line);
		used[gpu] += bytes;
		percent[gpu] += share;
	}
}

static void add_soft_gpus(const char *folder)
{
	DIR *found = opendir(folder);
	int listed[SOFT_GPUS] = {0};
	uint64_t used[SOFT_GPUS] = {0};
	unsigned percent[SOFT_GPUS] = {0}, pid;
	char line[160], path[512], end[8];

	for (struct dirent *it; found && (it = readdir(found));) {
		if (sscanf(it->d_name, "%u.%7s", &pid, end) != 2 || strcmp(end, "libcuda"))
			continue;
		snprintf(path, sizeof path, "%s/%s", folder, it->d_name);
		soft_process(path, pid, listed, used, percent);
	}
	if (found)
		closedir(found);
	for (int gpu = 0; gpu < SOFT_GPUS; gpu++) {
		snprintf(line, sizeof line, "gpu%d.memory_used=%" PRIu64 "\ngpu%d.utilization=%u", gpu, used[gpu], gpu,
			 percent[gpu] < 100 ? percent[gpu] : 100);
		add_lines(line);
	}
	for (int i = 0; i < soft_event_count; i++) {
		snprintf(line, sizeof line, "event.%d=%d 8 %d", FIRST_SOFT_EVENT + i, soft_events[i].gpu,
			 soft_events[i].number);
		add_lines(line);
	}
}
