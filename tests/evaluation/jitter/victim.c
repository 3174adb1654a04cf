// SPDX-License-Identifier: GPL-2.0-only
/*
 * victim CAUSE STEPS EVERY FILE: steps of about 100 us on core 1, with timestamps in FILE for
 * nsight-report --intervals. Every EVERY-th step meets CAUSE, and FILE.log says when the cause
 * acted (begin and end, CLOCK_MONOTONIC). The steps run at real-time priority; threads that
 * compete for their core have a higher one.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HELPERS = 3, TIMERS = 4000, BYTES = 8 << 20, BLOCK = 1 << 20, MAPPED = 16 << 20 };

static const char *cause;
static sem_t go[HELPERS], there, answer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int acting, answered; /* acting: 0 not now, 1, 2: it should end */
static volatile unsigned long sum;
static FILE *acted;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void burn(uint64_t ns)
{
	for (uint64_t end = now() + ns; now() < end;)
		for (int i = 0; i < 100; i++)
			sum += i;
}

static void work(void)
{
	for (unsigned long i = 0; i < 60000; i++)
		sum += i;
}

static void on_core(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static int is(const char *name)
{
	return !strcmp(cause, name);
}

/* What acts beside the steps, once for each go. */
static void act(void)
{
	uint64_t begin = now();
	char *page;

	if (is("oversubscription")) {
		burn(1000000);
	} else if (is("lock convoy")) {
		pthread_mutex_lock(&lock);
		sem_post(&there);
		burn(2000000);
		pthread_mutex_unlock(&lock);
	} else if (is("lock-free")) {
		sem_post(&there);
		burn(2000000);
	} else if (is("TLB shootdown")) {
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		sem_post(&there);
		while (atomic_load(&acting) == 1) {
			*page = 1;
			mprotect(page, 4096, PROT_READ);
			mprotect(page, 4096, PROT_READ | PROT_WRITE);
		}
		munmap(page, 4096);
	} else if (is("sleep")) {
		burn(250000);
		atomic_store(&answered, 1);
		sem_post(&answer);
	}
	if (!atomic_load(&acting))
		return;
	flockfile(acted);
	fprintf(acted, "%lu %lu\n", begin, now());
	funlockfile(acted);
}

static void *helper(void *number)
{
	long n = (long)number;

	prctl(PR_SET_NAME, "crowd");
	on_core(is("oversubscription"));
	if (is("sleep") || is("oversubscription"))
		sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 2});
	for (;;) {
		sem_wait(&go[n]);
		act();
	}
	return NULL;
}

static void look_at(const char *mapped)
{
	for (int i = 0; i < MAPPED; i += 4096)
		sum += mapped[i];
}

/* Move all pages of this process to the other of two nodes. */
static void move(void)
{
	static int to = 1;
	unsigned long from_set = 1ul << !to, to_set = 1ul << to;

	syscall(SYS_migrate_pages, 0, 8, &from_set, &to_set);
	to = !to;
}

/* Set all timers to the same time, 50 us after this returns. */
static void arm(const int *timers)
{
	uint64_t due = now() + 20000000;
	struct itimerspec at = {.it_value = {due / 1000000000, due % 1000000000}};

	for (int i = 0; i < TIMERS; i++)
		timerfd_settime(timers[i], TFD_TIMER_ABSTIME, &at, NULL);
	while (now() + 50000 < due)
		;
}

int main(int argc, char **argv)
{
	int steps = argc > 2 ? atoi(argv[2]) : 0, every = argc > 3 ? atoi(argv[3]) : 1, file = -1,
	    empty = -1;
	int *timers = calloc(TIMERS, sizeof(*timers));
	uint64_t(*at)[2] = calloc(steps, sizeof(*at));
	char path[4096], *mapped = NULL, *block = aligned_alloc(4096, BLOCK);
	char *memory =
		mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;
	FILE *out;

	if (argc != 5)
		return 2;
	cause = argv[1];
	snprintf(path, sizeof(path), "%s.log", argv[4]);
	acted = fopen(path, "w");
	out = fopen(argv[4], "w");
	if (!acted || !out || !block || memory == MAP_FAILED)
		return 1;
	memset(block, 1, BLOCK);
	memset(memory, 1, BYTES);
	on_core(1);
	sem_init(&there, 0, 0);
	sem_init(&answer, 0, 0);
	for (long i = 0; i < HELPERS; i++) {
		sem_init(&go[i], 0, 0);
		pthread_create(&thread, NULL, helper, (void *)i);
	}
	if (is("I/O")) {
		snprintf(path, sizeof(path), "%s.data", argv[4]);
		file = open(path, O_CREAT | O_RDWR | O_TRUNC | O_DIRECT, 0600);
	}
	if (is("reclaim")) {
		snprintf(path, sizeof(path), "%s.data", argv[4]);
		file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
		if (ftruncate(file, MAPPED))
			return 1;
		mapped = mmap(NULL, MAPPED, PROT_READ, MAP_SHARED, file, 0);
		if (mapped == MAP_FAILED || madvise(mapped, MAPPED, MADV_RANDOM))
			return 1;
		empty = open(getenv("RECLAIM"), O_WRONLY);
	}
	if (is("compaction"))
		file = open("/proc/sys/vm/compact_memory", O_WRONLY);
	if (is("timers")) {
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){TIMERS + 100, TIMERS + 100});
		for (int i = 0; i < TIMERS; i++)
			timers[i] = timerfd_create(CLOCK_MONOTONIC, 0);
	}
	/* Other work on this machine should not disturb the steps. */
	sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
	for (int i = 0; i < steps; i++) {
		int hit = i % every == every - 1;
		uint64_t begin;

		atomic_store(&acting, hit);
		if (hit && (is("lock convoy") || is("lock-free") || is("TLB shootdown"))) {
			sem_post(&go[0]);
			sem_wait(&there);
		}
		if (hit && is("timers"))
			arm(timers);
		if (hit && is("reclaim"))
			look_at(mapped);
		if (is("sleep")) {
			atomic_store(&answered, 0);
			sem_post(&go[0]);
		}
		at[i][0] = now();
		begin = at[i][0];
		if (hit && is("oversubscription"))
			for (int k = 0; k < HELPERS; k++)
				sem_post(&go[k]);
		if (is("lock convoy"))
			pthread_mutex_lock(&lock);
		work();
		if (is("lock convoy"))
			pthread_mutex_unlock(&lock);
		if (is("sleep") && !hit)
			while (!atomic_load(&answered))
				;
		if (is("sleep"))
			sem_wait(&answer);
		if (hit && is("page faults")) {
			madvise(memory, BYTES, MADV_DONTNEED);
			for (int k = 0; k < BYTES; k += 4096)
				memory[k] = 1;
		}
		if (hit && is("I/O") && pwrite(file, block, BLOCK, 0) == BLOCK)
			fdatasync(file);
		/* It may find less than requested. */
		if (hit && is("reclaim") && write(empty, "16M", 3) != 3 && errno != EAGAIN)
			return 1;
		if (hit && is("compaction") && write(file, "1", 1) != 1)
			return 1;
		if (hit && is("page migration"))
			move();
		at[i][1] = now();
		if (hit && is("TLB shootdown"))
			atomic_store(&acting, 2);
		if (hit && (is("page faults") || is("I/O") || is("timers") || is("reclaim") ||
			    is("compaction") || is("page migration"))) {
			flockfile(acted);
			fprintf(acted, "%lu %lu\n", begin, at[i][1]);
			funlockfile(acted);
		}
		usleep(hit ? 4000 : 200);
	}
	fprintf(out, "# thread %ld\nname,start,stop\n", syscall(SYS_gettid));
	for (int i = 0; i < steps; i++)
		fprintf(out, "step,%lu,%lu\n", at[i][0], at[i][1]);
	fclose(acted);
	fclose(out);
	if (is("I/O") || is("reclaim"))
		unlink(path);
	return 0;
}
