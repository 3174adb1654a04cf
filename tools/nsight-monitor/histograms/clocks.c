// SPDX-License-Identifier: GPL-2.0-only
#include "clocks.h"

#include <linux/net_tstamp.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define TRIES 5

uint64_t clock_ns(int clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
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

int clock_receive_stamps(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0),
	    how = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;

	if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &how, sizeof(how))) {
		close(fd);
		fd = -1;
	}
	return fd;
}
