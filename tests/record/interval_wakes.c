// SPDX-License-Identifier: GPL-2.0-only
/* A wake-up each millisecond, as in cyclictest. For each one, a line: when it was due, and when the
 * thread ran. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t ns(const struct timespec *t)
{
	return t->tv_sec * 1000000000ull + t->tv_nsec;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 100;
	uint64_t(*at)[2] = calloc(n, sizeof(*at));
	struct timespec due, now;

	clock_gettime(CLOCK_MONOTONIC, &due);
	for (int i = 0; i < n; i++) {
		due.tv_nsec += 1000000;
		if (due.tv_nsec >= 1000000000) {
			due.tv_nsec -= 1000000000;
			due.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		at[i][0] = ns(&due);
		at[i][1] = ns(&now);
	}
	for (int i = 0; i < n; i++)
		printf("%lu %lu\n", at[i][0], at[i][1]);
	return 0;
}
