// SPDX-License-Identifier: GPL-2.0-only
#include "clocks.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define TRIES	  5
#define TRY_MS	  10
#define STAMPS_NS 5000000000ull

/* What this process's time namespace adds to CLOCK_MONOTONIC; the programs' clock is without it. */
static int64_t of_namespace(void)
{
	static bool known;
	static int64_t offset;
	int64_t s, ns;
	char line[128];
	FILE *file;

	if (known)
		return offset;
	known = true;
	file = fopen("/proc/self/timens_offsets", "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "monotonic %" SCNd64 " %" SCNd64, &s, &ns) == 2)
			offset = s * 1000000000 + ns;
	if (file)
		fclose(file);
	return offset;
}

uint64_t clock_ns(int clock)
{
	struct timespec t;
	uint64_t now;

	clock_gettime(clock, &t);
	now = t.tv_sec * 1000000000ull + t.tv_nsec;
	return clock == CLOCK_MONOTONIC ? now - of_namespace() : now;
}

int64_t clock_realtime_offset(void)
{
	uint64_t least = UINT64_MAX;
	int64_t offset = 0;

	for (int i = 0; i < TRIES; i++) {
		uint64_t before = clock_ns(CLOCK_MONOTONIC), real = clock_ns(CLOCK_REALTIME),
			 took = clock_ns(CLOCK_MONOTONIC) - before;

		if (took < least) {
			least = took;
			offset = real - (before + took / 2);
		}
	}
	return offset;
}

void clock_watch_again(int fd)
{
	/* The timer never expires; it only reports when the clock is set. */
	struct itimerspec never = {.it_value.tv_sec = INT32_MAX};

	timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &never, NULL);
}

int clock_watch(void)
{
	int fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);

	if (fd >= 0)
		clock_watch_again(fd);
	return fd;
}

/* A datagram of this socket to itself, over loopback. */
static bool to_itself(int fd)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(own);

	return !bind(fd, (struct sockaddr *)&own, sizeof(own)) &&
	       !getsockname(fd, (struct sockaddr *)&own, &size) &&
	       !connect(fd, (struct sockaddr *)&own, size);
}

static bool is_stamped(int fd)
{
	char control[CMSG_SPACE(sizeof(struct scm_timestamping))], byte;
	struct iovec data = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};

	if (recvmsg(fd, &message, 0) < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING)
			return true;
	return false;
}

/*
 * The kernel begins to stamp in a work item, which may run long after setsockopt on a busy
 * machine. Without a loopback device, nobody can tell.
 */
static void wait_for_stamps(int fd)
{
	uint64_t until = clock_ns(CLOCK_MONOTONIC) + STAMPS_NS;
	struct pollfd arrived = {.fd = fd, .events = POLLIN};

	if (!to_itself(fd))
		return;
	while (clock_ns(CLOCK_MONOTONIC) < until && send(fd, "", 1, 0) == 1)
		if (poll(&arrived, 1, TRY_MS) == 1 && is_stamped(fd))
			return;
}

int clock_receive_stamps(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0),
	    how = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;

	if (fd < 0)
		return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &how, sizeof(how))) {
		close(fd);
		return -1;
	}
	wait_for_stamps(fd);
	return fd;
}
