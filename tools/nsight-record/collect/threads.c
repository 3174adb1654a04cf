// SPDX-License-Identifier: GPL-2.0-only
#include "threads.h"

#include <ctype.h>
#include <limits.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_WORDS (NSR_MAX_BLOCK / 2 / 8)

static uint64_t *batch;
static size_t n_words;

static uint64_t first_word(uint32_t type, uint64_t time)
{
	return time << 16 | 0x80 << 8 | type;
}

static void flush(struct output *out, uint64_t now)
{
	if (n_words)
		output_block(out, NSR_RECORDS, batch, n_words * 8, now, out->units);
	out->units += n_words * 8 / NSR_UNIT;
	n_words = 0;
}

static uint64_t *room(struct output *out, size_t words, uint64_t now)
{
	if (!batch)
		batch = calloc(BATCH_WORDS, 8);
	if (!batch)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	if (n_words + words > BATCH_WORDS)
		flush(out, now);
	n_words += words;
	return batch + n_words - words;
}

static void thread(struct output *out, uint32_t pid, uint32_t tid, uint64_t now)
{
	char path[64], name[17] = {0};
	uint64_t *record;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task/%" PRIu32 "/comm", pid, tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, name, 16);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return; /* it has ended in the meantime */
	name[strcspn(name, "\n")] = 0;
	record = room(out, 6, now);
	record[0] = first_word(NSR_TASK, now);
	record[1] = tid | (uint64_t)pid << 32;
	memset(&record[2], 0, 32);
	memcpy(&record[2], name, strlen(name));
	record[4] = NSR_TASK_WAS_THERE;
	out->written[NSR_TASK]++;
}

void threads_were_there(struct output *out, uint64_t now)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;

	if (!processes)
		return;
	while ((entry = readdir(processes))) {
		char path[NAME_MAX + 16];
		struct dirent *task;
		DIR *tasks;

		if (!isdigit((unsigned char)*entry->d_name))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/task", entry->d_name);
		tasks = opendir(path);
		if (!tasks)
			continue;
		while ((task = readdir(tasks)))
			if (isdigit((unsigned char)*task->d_name))
				thread(out, (uint32_t)atol(entry->d_name),
				       (uint32_t)atol(task->d_name), now);
		closedir(tasks);
	}
	closedir(processes);
	flush(out, now);
}

/* Calls each() for every core with its steal time in ns. */
static void read_steal(void (*each)(uint32_t cpu, uint64_t ns, void *data), void *data)
{
	FILE *file = fopen("/proc/stat", "re");
	uint64_t tick = 1000000000ull / sysconf(_SC_CLK_TCK), stolen;
	char line[512];
	uint32_t cpu;

	if (!file)
		return;
	while (fgets(line, sizeof(line), file) && !strncmp(line, "cpu", 3))
		if (sscanf(line, "cpu%" SCNu32 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &cpu,
			   &stolen) == 2 &&
		    cpu < MAX_STEAL_CPUS)
			each(cpu, stolen * tick, data);
	fclose(file);
}

static void note(uint32_t cpu, uint64_t ns, void *data)
{
	((struct steal *)data)->ns[cpu] = ns;
}

void steal_begin(struct steal *steal)
{
	memset(steal, 0, sizeof(*steal));
	read_steal(note, steal);
}

struct look {
	struct steal *steal;
	uint64_t now;
};

static void compare(uint32_t cpu, uint64_t ns, void *data)
{
	struct look *look = data;
	struct steal *steal = look->steal;
	uint64_t *before = &steal->ns[cpu];

	if (ns > *before) {
		struct stolen *next = &steal->stolen[steal->n_stolen++ % N_STOLEN];

		steal->forgotten = next->time;
		*next = (struct stolen){.time = look->now, .ns = ns - *before, .cpu = cpu};
	}
	*before = ns;
}

void steal_note(struct steal *steal, uint64_t now)
{
	struct look look = {steal, now};

	read_steal(compare, &look);
}

static void write_stolen(struct output *out, const struct stolen *stolen)
{
	uint64_t *record = room(out, 2, stolen->time);

	record[0] = first_word(NSR_STEAL, stolen->time);
	record[1] = stolen->ns | (uint64_t)(stolen->cpu & 0xffff) << NSR_TIME_BITS;
	out->written[NSR_STEAL]++;
}

void steal_look(struct steal *steal, struct output *out, uint64_t now)
{
	uint64_t i = steal->n_stolen;

	steal_note(steal, now);
	for (; i < steal->n_stolen; i++)
		write_stolen(out, &steal->stolen[i % N_STOLEN]);
	flush(out, now);
}

uint64_t steal_write(struct steal *steal, struct output *out, uint64_t since)
{
	uint64_t i = steal->n_stolen > N_STOLEN ? steal->n_stolen - N_STOLEN : 0, latest = since;

	for (; i < steal->n_stolen; i++)
		if (steal->stolen[i % N_STOLEN].time >= since) {
			write_stolen(out, &steal->stolen[i % N_STOLEN]);
			latest = steal->stolen[i % N_STOLEN].time;
		}
	flush(out, latest);
	return steal->forgotten >= since ? steal->forgotten - since + 1 : 0;
}
