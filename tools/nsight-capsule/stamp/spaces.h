/* SPDX-License-Identifier: GPL-2.0-only */
/* The namespaces whose devices are watched: all that have a name or a process. */
#ifndef NSIGHT_SPACES_H
#define NSIGHT_SPACES_H

#include <stdbool.h>
#include <stdint.h>

struct space {
	char *path;
	uint64_t inode, cookie;
	int watch; /* what links_watch returned */
};

/* Watch those that came, and call on_new in each. False: there are too many. */
bool spaces_find(void (*on_new)(const struct space *));
/* The one that was watched with this result; NULL: none. */
const struct space *spaces_of(int watch);
/* It was deleted. The structure stays valid. */
void spaces_drop(const struct space *space);

#endif
