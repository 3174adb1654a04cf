// SPDX-License-Identifier: GPL-2.0-only
/*
 * Steps of work between two marks. For each step, the program prints a line: the step's number, the
 * thread, and the times by this program's clock before and after the begin, and before and after
 * the end. Every eighth step sleeps for 3 ms. Two threads do steps at the same time; a third thread
 * begins a step that it never ends, and ends a step that it never began.
 */
#include <nsight/interval.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int n_steps;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((noinline)) void work_begins(void)
{
	__asm__ volatile("" : : : "memory");
}

__attribute__((noinline)) void work_ends(void)
{
	__asm__ volatile("" : : : "memory");
}

static void *steps(void *unused)
{
	uint64_t(*at)[4] = calloc(n_steps, sizeof(*at));
	long tid = syscall(SYS_gettid);

	for (int i = 0; i < n_steps; i++) {
		at[i][0] = now();
		NSIGHT_BEGIN(step);
		at[i][1] = now();
		work_begins();
		if (i % 8 == 7)
			nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
		work_ends();
		at[i][2] = now();
		NSIGHT_END(step);
		at[i][3] = now();
	}
	flockfile(stdout);
	for (int i = 0; i < n_steps; i++)
		printf("%d %ld %lu %lu %lu %lu\n", i, tid, at[i][0], at[i][1], at[i][2], at[i][3]);
	funlockfile(stdout);
	return unused;
}

static void *halves(void *unused)
{
	NSIGHT_END(step);   /* without a begin */
	NSIGHT_BEGIN(step); /* abandoned at the next begin */
	NSIGHT_BEGIN(step); /* without an end */
	return unused;
}

int main(int argc, char **argv)
{
	void *(*const bodies[])(void *) = {steps, steps, halves};
	pthread_t threads[3];

	n_steps = argc > 1 ? atoi(argv[1]) : 100;
	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, bodies[i], NULL))
			return 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
