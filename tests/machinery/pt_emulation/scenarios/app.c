// SPDX-License-Identifier: GPL-2.0-only
/*
 * pt-app - an echo server whose slow requests have a known cause
 *
 *	pt-app ADDRESS PORT CAUSE [EVERY]
 *
 * Serves one request per recv() and echoes it. Every EVERYth request (default 10) suffers CAUSE:
 *	none	nothing
 *	slow	lookup() takes longer
 *	often	lookup() is called many times
 *	lock	another thread holds the lock that lookup() takes
 *	fault	the pages that lookup() reads were given back
 *	mprotect lookup() changes the protection of a page again and again
 * Marks enclose the code that is different.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mark.h"

#define TABLE_PAGES 64
#define PAGE	    4096
#define MAX_CONNS   64
#define HOLD_TURNS  200000

enum cause { NONE, SLOW, OFTEN, LOCK, FAULT, MPROTECT };

static const char *const names[] = {"none", "slow", "often", "lock", "fault", "mprotect"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held;
static unsigned char *table;
static volatile uint64_t sink;

#define NOINLINE __attribute__((noinline, noclone))

static void fail(const char *what)
{
	fprintf(stderr, "pt-app: error: %s: %s\n", what, strerror(errno));
	exit(1);
}

NOINLINE static uint64_t spin(unsigned int turns)
{
	uint64_t sum = sink;

	for (unsigned int i = 0; i < turns; i++)
		sum = sum * 6364136223846793005u + 1442695040888963407u;
	return sum;
}

NOINLINE static uint64_t lookup(unsigned int turns)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < TABLE_PAGES; i++)
		sum += table[i * PAGE];
	pthread_mutex_unlock(&lock);
	return sum + spin(turns);
}

NOINLINE static void parse_request(const char *bytes, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (unsigned char)bytes[i];
	sink += sum;
}

/* Another thread, on the same core, that holds the lock when the request needs it. */
static void *holder(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&held);
		pthread_mutex_lock(&lock);
		pthread_barrier_wait(&held);
		sink += spin(HOLD_TURNS);
		pthread_mutex_unlock(&lock);
	}
	return unused;
}

NOINLINE static void disturbed_lookup(enum cause cause)
{
	unsigned int turns = 200;

	switch (cause) {
	case SLOW:
		turns = 100000;
		break;
	case OFTEN:
		for (int i = 0; i < 100; i++)
			sink += lookup(200);
		break;
	case LOCK:
		pthread_barrier_wait(&held);
		pthread_barrier_wait(&held);
		break;
	case FAULT:
		if (madvise(table, TABLE_PAGES * PAGE, MADV_DONTNEED))
			fail("madvise");
		break;
	case MPROTECT:
		for (int i = 0; i < 100; i++) {
			if (mprotect(table, PAGE, PROT_READ) ||
			    mprotect(table, PAGE, PROT_READ | PROT_WRITE))
				fail("mprotect");
		}
		break;
	case NONE:
		break;
	}
	sink += lookup(turns);
}

NOINLINE static void serve(int fd, const char *bytes, size_t n, bool disturb, enum cause cause)
{
	parse_request(bytes, n);
	if (disturb) {
		pt_mark(PT_MARK_BEGIN, cause, n);
		disturbed_lookup(cause);
		pt_mark(PT_MARK_END, cause, n);
	} else {
		sink += lookup(200);
	}
	if (send(fd, bytes, n, MSG_NOSIGNAL) != (ssize_t)n)
		fail("send");
}

static int listen_on(const char *address, const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0 || inet_pton(AF_INET, address, &a.sin_addr) != 1)
		fail(address);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, MAX_CONNS))
		fail("listen");
	return fd;
}

int main(int argc, char **argv)
{
	struct pollfd fds[MAX_CONNS];
	static char bytes[65536];
	unsigned long n_requests = 0, every = 10;
	enum cause cause = NONE;
	pthread_t thread;
	nfds_t n = 1;
	int one = 1;

	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: pt-app ADDRESS PORT CAUSE [EVERY]\n");
		return 2;
	}
	while (strcmp(names[cause], argv[3]))
		if (++cause > MPROTECT) {
			fprintf(stderr, "pt-app: error: %s is no cause\n", argv[3]);
			return 2;
		}
	if (argc == 5)
		every = strtoul(argv[4], NULL, 10);
	table = mmap(NULL, TABLE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		     -1, 0);
	if (table == MAP_FAILED || !every)
		fail("table");
	memset(table, 1, TABLE_PAGES * PAGE);
	if (cause == LOCK &&
	    (pthread_barrier_init(&held, NULL, 2) || pthread_create(&thread, NULL, holder, NULL)))
		fail("thread");
	fds[0] = (struct pollfd){.fd = listen_on(argv[1], argv[2]), .events = POLLIN};
	for (;;) {
		if (poll(fds, n, -1) < 0)
			fail("poll");
		if (fds[0].revents && n < MAX_CONNS) {
			int fd = accept4(fds[0].fd, NULL, NULL, SOCK_CLOEXEC);

			if (fd < 0)
				fail("accept");
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
			fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
		}
		for (nfds_t i = 1; i < n; i++) {
			ssize_t got;

			if (!fds[i].revents)
				continue;
			got = recv(fds[i].fd, bytes, sizeof(bytes), 0);
			if (got > 0) {
				n_requests++;
				serve(fds[i].fd, bytes, (size_t)got, n_requests % every == 0,
				      cause);
				continue;
			}
			close(fds[i].fd);
			fds[i--] = fds[--n];
		}
	}
}
