/* SPDX-License-Identifier: GPL-2.0-only */
/* The command line. */
#ifndef NSIGHT_MONITOR_ARGUMENTS_H
#define NSIGHT_MONITOR_ARGUMENTS_H

#include "fail.h"
#include "stages.h"

#include <stdbool.h>
#include <stdint.h>

struct arguments {
	uint64_t port, pid, cgroup, ifindex, netns, netns_cookie, queue, n_groups, group_idle_ms,
		interval_ms, duration_ms, trigger_pause_ms;
	const char *comm;
	/* IPv4 in IPv6 form, in network byte order; all 0: any */
	uint8_t peer[16], peer_mask[16];
	uint64_t trigger_ns[N_STAGES]; /* 0: none */
	enum group_by group_by;
	uint32_t stages; /* 1 << enum stage; 0: all that need not be named */
	bool list, cost, follow, no_probes, receive_stamps, triggers;
};

/* Exits if the command line is wrong, or after the help text. */
void arguments_parse(int argc, char **argv, struct arguments *args);
const char *group_by_name(enum group_by by);

#endif
