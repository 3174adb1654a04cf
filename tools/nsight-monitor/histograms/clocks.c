// SPDX-License-Identifier: GPL-2.0-only
#include "clocks.h"

#include <inttypes.h>
#include <linux/net_tstamp.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define TRIES 5

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
