/* SPDX-License-Identifier: GPL-2.0-only */
/* The command line of nsight-collect. */
#ifndef NSIGHT_ARGUMENTS_H
#define NSIGHT_ARGUMENTS_H

#include "flight.h"

#include <stdbool.h>
#include <stdint.h>

struct arguments {
	const char *dir;
	const char *acknowledgements; /* record sockets of this cgroup; NULL: none */
	uint64_t port, pid, cgroup, ifindex, netns, ring_kb, every_ms;
	bool check, compress, rx, tx, activity, waits, syscalls, all_syscalls, of_server,
		hardware_stamps;
	struct flight_options flight;
};

/* Fill in args, or exit: after the help text, or with what is wrong in the command. */
void arguments_parse(int argc, char **argv, struct arguments *args);

#endif
