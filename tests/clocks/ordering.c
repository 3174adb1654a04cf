// SPDX-License-Identifier: GPL-2.0-only
/*
 * ordering PAIRS SECONDS [BURST] > FILE: read TSC, CLOCK_REALTIME, TSC, ... and
 * write each pair as two little-endian 64-bit integers (cycles, ns).
 *
 * The pairs come in bursts, back to back within each burst. The bursts are spread
 * over SECONDS, so that the readings are dense and see many timekeeper updates.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tsc.h"

#define MAX_BURST 4096

static int64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

int main(int argc, char **argv)
{
	static int64_t burst[MAX_BURST][2];
	long pairs = argc > 1 ? atol(argv[1]) : 0;
	double seconds = argc > 2 ? atof(argv[2]) : 0;
	long size = argc > 3 ? atol(argv[3]) : 64;
	int64_t start, step;

	if (pairs <= 0 || seconds <= 0 || size <= 0 || size > MAX_BURST) {
		fprintf(stderr, "usage: ordering PAIRS SECONDS [BURST<=%d] > FILE\n", MAX_BURST);
		return 2;
	}
	step = (int64_t)(seconds * 1e9 / ((double)pairs / (double)size));
	start = now_ns(CLOCK_MONOTONIC);
	for (long n = 0; n * size < pairs; n++) {
		/* Busy-wait: a sleeping reader would miss the moment when the clock changes. */
		while (now_ns(CLOCK_MONOTONIC) < start + n * step)
			;
		for (long i = 0; i < size; i++) {
			burst[i][0] = (int64_t)tsc_ordered();
			burst[i][1] = now_ns(CLOCK_REALTIME);
		}
		if (fwrite(burst, sizeof(burst[0]), size, stdout) != (size_t)size) {
			perror("ordering");
			return 5;
		}
	}
	if (fflush(stdout)) {
		perror("ordering");
		return 5;
	}
	return 0;
}
