// SPDX-License-Identifier: GPL-2.0-only
/* marks THREADS SECONDS: marks empty intervals, one after the other, and prints their
 * number. */
#include <nsight/interval.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 64, AT_A_TIME = 1000 };

static double seconds;
static long n[MOST];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *run(void *number)
{
	double end = now() + seconds;

	for (; now() < end; n[(long)number] += AT_A_TIME)
		for (int i = 0; i < AT_A_TIME; i++) {
			NSIGHT_BEGIN(tick);
			NSIGHT_END(tick);
		}
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atoi(argv[1]) : 0, sum = 0;
	pthread_t thread[MOST];

	seconds = argc > 2 ? atof(argv[2]) : 0;
	if (threads < 1 || threads > MOST)
		return 2;
	for (long i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, run, (void *)i))
			return 1;
	for (long i = 0; i < threads; i++) {
		pthread_join(thread[i], NULL);
		sum += n[i];
	}
	printf("%ld\n", sum);
	return 0;
}
