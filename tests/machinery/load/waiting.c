// SPDX-License-Identifier: GPL-2.0-only
/*
 * waiting DIRECTORY: threads and processes that wait for each other. Each wait has surely begun
 * before the event that ends it. Prints a line for each case: its name, who waits, who ends the
 * wait, and a number (address of the lock, or file descriptor).
 */
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS	 10
#define SLEEP_NS 5000000
#define PAGES	 64

static void sleep_ns(long ns)
{
	struct timespec t = {0, ns};

	while (nanosleep(&t, &t))
		;
}

/* A thread's data from /proc: the number from file "syscall", the state from "stat". */
static long told(int tid, const char *file)
{
	char path[64], text[512], *end;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", tid, file);
	f = fopen(path, "r");
	n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	text[n] = 0;
	if (f)
		fclose(f);
	if (!strcmp(file, "syscall"))
		return strncmp(text, "running", 7) && n ? strtol(text, NULL, 10) : -1;
	end = strrchr(text, ')');
	return end ? end[2] : 0;
}

/* Wait until the thread sleeps in the system call. */
static void until_in(int tid, long number)
{
	while (told(tid, "syscall") != number || told(tid, "stat") != 'S')
		sleep_ns(200000);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int waiter;
static pthread_barrier_t round_begins, round_ends;

static void *waits_for_lock(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "lock-waiter");
	waiter = gettid();
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&round_begins);
		pthread_mutex_lock(&lock);
		pthread_mutex_unlock(&lock);
		pthread_barrier_wait(&round_ends);
	}
	return NULL;
}

/* Returns when the waiter waits for nothing else. */
static void hold_lock(void)
{
	pthread_t thread;

	pthread_barrier_init(&round_begins, NULL, 2);
	pthread_barrier_init(&round_ends, NULL, 2);
	pthread_create(&thread, NULL, waits_for_lock, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_mutex_lock(&lock);
		pthread_barrier_wait(&round_begins);
		/* it may still be on its way out of the barrier */
		while (*(volatile int *)&lock != 2)
			sleep_ns(200000);
		until_in(waiter, SYS_futex);
		sleep_ns(SLEEP_NS);
		pthread_mutex_unlock(&lock);
		pthread_barrier_wait(&round_ends);
	}
	pthread_join(thread, NULL);
	printf("lock %d %d %lu\n", waiter, gettid(), (unsigned long)&lock);
}

/* A child reads from a pipe or socket; its parent writes once the child waits. */
static void hand_over(const char *name, long number, int reads, int writes)
{
	pid_t child = fork();
	char byte = 0;

	if (!child) {
		prctl(PR_SET_NAME, name);
		for (int i = 0; i < ROUNDS; i++)
			if ((number == SYS_read ? read(reads, &byte, 1)
						: recv(reads, &byte, 1, 0)) != 1)
				_exit(1);
		_exit(0);
	}
	for (int i = 0; i < ROUNDS; i++) {
		until_in(child, number);
		sleep_ns(SLEEP_NS);
		if (write(writes, &byte, 1) != 1)
			err(1, "write");
	}
	waitpid(child, NULL, 0);
	printf("%s %d %d %d\n", name, child, gettid(), reads);
}

/* Both ends of a connection over loopback */
static void connect_pair(int *ends)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t length = sizeof(address);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ends[1] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(ends[1], (struct sockaddr *)&address, length))
		err(1, "loopback");
	ends[0] = accept(listener, NULL, NULL);
	if (ends[0] < 0)
		err(1, "accept");
	close(listener);
}

static void stop(void)
{
	pid_t child = fork();

	if (!child) {
		prctl(PR_SET_NAME, "stopped");
		for (;;)
			pause();
	}
	until_in(child, SYS_pause);
	kill(child, SIGSTOP);
	while (told(child, "stat") != 'T')
		sleep_ns(200000);
	sleep_ns(SLEEP_NS);
	kill(child, SIGCONT);
	until_in(child, SYS_pause);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	printf("stop %d %d 0\n", child, gettid());
}

static void write_disk(const char *directory)
{
	char path[4096], page[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/waiting.data", directory);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		err(1, "%s", path);
	memset(page, 'x', sizeof(page));
	for (int i = 0; i < PAGES; i++)
		if (write(fd, page, sizeof(page)) != sizeof(page))
			err(1, "%s", path);
	for (int i = 0; i < ROUNDS; i++) {
		if (pwrite(fd, page, sizeof(page), 0) != sizeof(page) || fsync(fd))
			err(1, "%s", path);
	}
	printf("fsync %d 0 %d\n", gettid(), fd);
	close(fd);
}

/* Pages that are not in memory are read when they are accessed. */
static void read_cold(const char *directory)
{
	volatile char sum = 0;
	char path[4096];
	char *data;
	int fd, cold = 0;

	snprintf(path, sizeof(path), "%s/waiting.data", directory);
	fd = open(path, O_RDONLY);
	data = mmap(NULL, PAGES * 4096, PROT_READ, MAP_SHARED, fd, 0);
	if (fd < 0 || data == MAP_FAILED)
		err(1, "%s", path);
	madvise(data, PAGES * 4096, MADV_RANDOM);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	for (int i = 1; i < PAGES; i++) {
		unsigned char in_memory = 1;

		mincore(data + i * 4096, 4096, &in_memory);
		cold += !(in_memory & 1);
		sum += data[i * 4096];
	}
	printf("fault %d 0 %d\n", gettid(), cold);
}

int main(int argc, char **argv)
{
	int ends[2];

	if (argc != 2)
		errx(2, "usage: waiting DIRECTORY");
	prctl(PR_SET_NAME, "waiting");
	setvbuf(stdout, NULL, _IOLBF, 0);
	hold_lock();
	if (pipe(ends))
		err(1, "pipe");
	hand_over("pipe", SYS_read, ends[0], ends[1]);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		err(1, "socketpair");
	hand_over("unix", SYS_recvfrom, ends[0], ends[1]);
	connect_pair(ends);
	hand_over("tcp", SYS_recvfrom, ends[0], ends[1]);
	stop();
	write_disk(argv[1]);
	read_cold(argv[1]);
	return 0;
}
