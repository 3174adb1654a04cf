// SPDX-License-Identifier: GPL-2.0-only
/*
 * disturb_clock SECONDS: slew and step CLOCK_REALTIME without pause.
 *
 * For throw-away guests only: it ruins the machine's time. It refuses to run
 * unless the environment says NSIGHT_GUEST=1. It prints its changes to stdout.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static double elapsed(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - since->tv_sec) + (double)(now.tv_nsec - since->tv_nsec) / 1e9;
}

static int step(long ns)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += ns;
	while (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	while (t.tv_nsec < 0) {
		t.tv_nsec += 1000000000;
		t.tv_sec--;
	}
	return clock_settime(CLOCK_REALTIME, &t);
}

int main(int argc, char **argv)
{
	const char *guest = getenv("NSIGHT_GUEST");
	/* +-2 ms, +-40 us, +-1 s: steps as made by NTP, and by an operator */
	static const long steps[] = {2000000, -2000000, 40000, -40000, 1000000000, -1000000000};
	long n_slew = 0, n_step = 0, n_tick = 0;
	double seconds = argc > 1 ? atof(argv[1]) : 0;
	struct timespec start;

	if (!guest || strcmp(guest, "1")) {
		fprintf(stderr,
			"error: this program ruins the clock and runs in a throw-away guest only\n"
			"hint: set NSIGHT_GUEST=1 there\n");
		return 4;
	}
	srandom(1);
	clock_gettime(CLOCK_MONOTONIC, &start);
	while (elapsed(&start) < seconds) {
		struct timex tx = {0};
		long dice = random() % 100;

		if (dice < 88) { /* frequency, +-500 ppm */
			tx.modes = ADJ_FREQUENCY;
			tx.freq = (random() % 1001 - 500) << 16;
			n_slew++;
		} else if (dice < 94) { /* tick, +-1 % */
			tx.modes = ADJ_TICK;
			tx.tick = 10000 + random() % 201 - 100;
			n_tick++;
		} else {
			if (step(steps[random() % 6])) {
				perror("clock_settime");
				return 5;
			}
			n_step++;
		}
		if (tx.modes && adjtimex(&tx) < 0) {
			perror("adjtimex");
			return 5;
		}
		usleep(1000 + random() % 4000);
	}
	printf("%ld frequency changes, %ld tick changes, %ld steps\n", n_slew, n_tick, n_step);
	return 0;
}
