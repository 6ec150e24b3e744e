/* A scenario: lines of `key = value`, read again whenever the file changes. `#` begins a comment.
 *
 * A value is a text or a number; a number may grow or swing with time, the same in every process:
 *     123          0x7b, 1e9 and 1.5 too
 *     100+20       100 at boot, and 20 more each second since (a counter)
 *     50~30        between 20 and 80, one swing in 60 s
 *     na           what NVML returns for "not available": all bits set
 *     none         as if the key were not there (the call is not supported)
 *     error:15     the call fails with that code
 */
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MOST_LINES = 8192, LONGEST_KEY = 80, LONGEST_VALUE = 176 };

struct line {
	char key[LONGEST_KEY], value[LONGEST_VALUE];
	int order;
};

static struct line lines[MOST_LINES];
static int line_count;
static struct timespec scenario_changed;
static long long scenario_looked;

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static int compare_lines(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	int keys = strcmp(x->key, y->key);
	return keys ? keys : x->order - y->order;
}

static void trimmed(char *to, size_t size, const char *from, size_t length)
{
	while (length && strchr(" \t\r\n", *from))
		from++, length--;
	while (length && strchr(" \t\r\n", from[length - 1]))
		length--;
	snprintf(to, size, "%.*s", (int)length, from);
}

static void add_lines(const char *text)
{
	while (*text && line_count < MOST_LINES) {
		size_t length = strcspn(text, "\n");
		const char *equals = memchr(text, '=', length);
		if (equals && *text != '#') {
			struct line *line = &lines[line_count];
			trimmed(line->key, sizeof line->key, text, equals - text);
			trimmed(line->value, sizeof line->value, equals + 1, text + length - equals - 1);
			line->order = line_count++;
		}
		text += length + (text[length] == '\n');
	}
}

static void add_line(const char *format, ...)
{
	char line[LONGEST_KEY + LONGEST_VALUE];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	add_lines(line);
}

#include "../softgpu/story.h"

/* The folder in which the soft driver counts, which changes without the file; NULL without one. */
static const char *soft_folder(void)
{
	const char *folder = NULL;
	for (int i = 0; i < line_count; i++)
		if (!strcmp(lines[i].key, "softgpu"))
			folder = lines[i].value;
	return folder;
}

/* The last line of a key counts, so the file goes over the defaults. */
static void read_scenario(const char *path, const char *defaults)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	long long at = now.tv_sec * 1000LL + now.tv_nsec / 1000000;
	if (line_count && at - scenario_looked < 20)
		return;
	scenario_looked = at;
	struct stat found = {0};
	if (path)
		stat(path, &found);
	if (line_count && !soft_folder() && !memcmp(&found.st_mtim, &scenario_changed, sizeof scenario_changed))
		return;
	scenario_changed = found.st_mtim;
	line_count = 0;
	add_lines(defaults);
	FILE *file = path ? fopen(path, "r") : NULL;
	if (file) {
		static char text[1 << 20];
		text[fread(text, 1, sizeof text - 1, file)] = 0;
		fclose(file);
		add_lines(text);
	}
	if (soft_folder()) {
		char folder[LONGEST_VALUE];
		snprintf(folder, sizeof folder, "%s", soft_folder());
		add_soft_gpus(folder);
	}
	qsort(lines, line_count, sizeof *lines, compare_lines);
}

/* The value of a key; NULL when there is none. */
static const char *text_of(const char *format, ...)
{
	struct line wanted = {.order = MOST_LINES};
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(wanted.key, sizeof wanted.key, format, arguments);
	va_end(arguments);
	int low = 0, high = line_count; /* the first line that comes after the wanted one */
	while (low < high) {
		int middle = (low + high) / 2;
		if (compare_lines(&lines[middle], &wanted) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low || strcmp(lines[low - 1].key, wanted.key) || !strcmp(lines[low - 1].value, "none"))
		return NULL;
	return lines[low - 1].value;
}

enum { NUMBER, NOT_AVAILABLE, FAILURE };

/* A number of the text: NUMBER with *integer and *real, or FAILURE with *integer the code. */
static int number_of(const char *text, uint64_t *integer, double *real)
{
	if (!strcmp(text, "na")) {
		*integer = UINT64_MAX;
		*real = NAN;
		return NOT_AVAILABLE;
	}
	if (!strncmp(text, "error:", 6)) {
		*integer = strtoull(text + 6, NULL, 0);
		return FAILURE;
	}
	char *rest;
	*integer = *text == '-' ? (uint64_t)strtoll(text, &rest, 0) : strtoull(text, &rest, 0);
	*real = *text == '-' ? (double)(int64_t)*integer : (double)*integer;
	if (*rest == '.' || *rest == 'e' || *rest == 'n' || *rest == 'i') {
		*real = strtod(text, &rest);
		*integer = (uint64_t)*real;
	}
	if (*rest == '+' || *rest == '~') {
		double change = strtod(rest + 1, NULL);
		*real += *rest == '+' ? change * seconds() : change * sin(seconds() * 3.14159265 / 30);
		*integer = *real < 0 ? (uint64_t)(int64_t)*real : (uint64_t)*real;
	}
	return NUMBER;
}
