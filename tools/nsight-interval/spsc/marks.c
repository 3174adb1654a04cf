// SPDX-License-Identifier: GPL-2.0-only
/*
 * marks: what a begin and an end cost. Prints ns of a pair of marks, of a read of the clock in the
 * same run, and their ratio; run it once alone, and once while somebody records its marks.
 */
#include "../nsight/interval.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

enum what { NOTHING, MARKS, CLOCK };

/* The fastest of a few turns: what else runs can only add to it. */
static double fastest(enum what what, uint64_t n)
{
	double best = 0;

	for (int turn = 0; turn < 9; turn++) {
		uint64_t began = now(), took;

		for (uint64_t i = 0; i < n; i++) {
			__asm__ volatile("" : : : "memory");
			if (what == MARKS) {
				NSIGHT_BEGIN(turn);
				NSIGHT_END(turn);
			} else if (what == CLOCK) {
				now();
			}
		}
		took = now() - began;
		if (!turn || (double)took / n < best)
			best = (double)took / n;
	}
	return best;
}

int main(int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	double loop, marks, clock;

	if (!n)
		return fputs("usage: marks [NUMBER]\n", stderr), 2;
	loop = fastest(NOTHING, n);
	marks = fastest(MARKS, n) - loop;
	clock = fastest(CLOCK, n) - loop;
	printf("a begin and an end %.2f ns, a read of the clock %.2f ns: ratio %.3f\n", marks,
	       clock, marks / clock);
	return 0;
}
