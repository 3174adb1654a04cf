// SPDX-License-Identifier: GPL-2.0-only
/*
 * gaps CPU SECONDS FILE: spins on a core, reads the clock all the time, and writes each gap between
 * two readings: its begin and end (CLOCK_MONOTONIC ns), and whether this thread left its core in
 * between. If it did not, only an interrupt or the host can have had the core. The first and the
 * last line are when it began and ended, with 2 in the third column.
 */
#include <err.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define LEAST_NS 20000
#define MOST	 4000000

struct gap {
	uint64_t begin, end;
	long left;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How often this thread left its core so far. */
static long n_left(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

int main(int argc, char **argv)
{
	static struct gap gaps[MOST];
	uint64_t begin, before, end;
	size_t n = 0;
	cpu_set_t set;
	long left;
	FILE *file;

	if (argc != 4)
		errx(2, "usage: gaps CPU SECONDS FILE");
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		err(1, "core %s", argv[1]);
	file = fopen(argv[3], "w");
	if (!file || mlockall(MCL_CURRENT | MCL_FUTURE))
		err(1, "%s", argv[3]);
	left = n_left();
	begin = before = now_ns();
	end = begin + (uint64_t)(atof(argv[2]) * 1e9);
	while (before < end && n < MOST) {
		uint64_t now = now_ns();

		if (now - before >= LEAST_NS) {
			long so_far = n_left();

			gaps[n++] = (struct gap){before, now, so_far != left};
			left = so_far;
			now = now_ns();
		}
		before = now;
	}
	fprintf(file, "%lu\t%lu\t2\n", begin, begin);
	for (size_t i = 0; i < n; i++)
		fprintf(file, "%lu\t%lu\t%ld\n", gaps[i].begin, gaps[i].end, gaps[i].left);
	fprintf(file, "%lu\t%lu\t2\n", before, before);
	return fclose(file) || n == MOST;
}
