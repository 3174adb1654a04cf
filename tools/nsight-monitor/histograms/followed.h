/* SPDX-License-Identifier: GPL-2.0-only */
/* Filters whose numbers change while the programs run: another interface, network namespace or
 * control group has the name. */
#ifndef NSIGHT_MONITOR_FOLLOWED_H
#define NSIGHT_MONITOR_FOLLOWED_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

/* Where the programs read the numbers; 0: no such filter. One that nothing has: all bits are 1. */
struct followed {
	volatile __u32 *ifindex, *netns;
	volatile __u64 *netns_cookie, *cgroup;
	int fd; /* to read new numbers from; -1: none will come */
	size_t n_bytes;
	char bytes[256]; /* of a line that is not complete */
};

/*
 * Take new numbers: lines with index of the interface, number and cookie of the namespace, number
 * of the control group. They are the caller's, who has the names. Others are ignored.
 */
void followed_read(struct followed *f);
/* Whether a filter selects something that does not exist. */
bool followed_is_gone(const struct followed *f);

#endif
