// SPDX-License-Identifier: GPL-2.0-only
/*
 * One thread makes orders and another one finishes them, several at a time. For each order, the
 * program prints a line: the order's number, both threads, and the times by this program's clock
 * before and after its begin, its hand-over and its end. Marks take the order's key as their
 * argument; functions take it as their second one. Keys repeat once their order is finished. One
 * order has a key that is begun twice, and one order is ended that was never begun.
 */
#include <nsight/interval.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { AT_ONCE = 4, KEYS = 7 };

static int n_orders;
static uint64_t (*at)[6];
static sem_t queued, room;
static long tids[2];

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((noinline)) void order_made(const char *what, uint64_t key)
{
	__asm__ volatile("" : : "r"(what), "r"(key) : "memory");
}

__attribute__((noinline)) void order_done(uint64_t key)
{
	__asm__ volatile("" : : "r"(key) : "memory");
}

static uint64_t key_of(int number)
{
	return 0x100000000ull + number % KEYS;
}

static void *make(void *unused)
{
	tids[0] = syscall(SYS_gettid);
	for (int i = 0; i < n_orders; i++) {
		sem_wait(&room);
		at[i][0] = now();
		NSIGHT_BEGIN_KEY(order, key_of(i));
		at[i][1] = now();
		order_made("order", key_of(i));
		at[i][2] = now();
		NSIGHT_MARK_KEY(order_queued, key_of(i));
		at[i][3] = now();
		sem_post(&queued);
	}
	return unused;
}

static void *finish(void *unused)
{
	tids[1] = syscall(SYS_gettid);
	for (int i = 0; i < n_orders; i++) {
		if (i % AT_ONCE == 0)
			for (int k = 0; k < AT_ONCE; k++)
				sem_wait(&queued);
		at[i][4] = now();
		order_done(key_of(i));
		NSIGHT_END_KEY(order, key_of(i));
		at[i][5] = now();
		sem_post(&room);
	}
	return unused;
}

int main(int argc, char **argv)
{
	void *(*const bodies[])(void *) = {make, finish};
	pthread_t threads[2];

	n_orders = (argc > 1 ? atoi(argv[1]) : 100) / AT_ONCE * AT_ONCE;
	at = calloc(n_orders, sizeof(*at));
	sem_init(&queued, 0, 0);
	sem_init(&room, 0, AT_ONCE);
	NSIGHT_BEGIN_KEY(order, 1); /* abandoned at the next begin */
	NSIGHT_BEGIN_KEY(order, 1); /* without an end */
	NSIGHT_END_KEY(order, 2);   /* without a begin */
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, bodies[i], NULL))
			return 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < n_orders; i++) {
		printf("%d %ld %ld", i, tids[0], tids[1]);
		for (int k = 0; k < 6; k++)
			printf(" %lu", at[i][k]);
		putchar('\n');
	}
	return 0;
}
