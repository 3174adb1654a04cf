/* SPDX-License-Identifier: GPL-2.0-only */
/* Which groups there are, and the end of those in which nothing is measured any more */
#ifndef NSIGHT_MONITOR_GROUPS_H
#define NSIGHT_MONITOR_GROUPS_H

#include "stages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A group has a place in the histograms; after it has ended, another group gets the place. It is
 * printed with a number that no other group ever has.
 */
struct group {
	enum { GROUP_FREE, GROUP_IN_USE, GROUP_LEAVING } state;
	struct group_key key;
	uint64_t number;
	uint64_t began;		/* its counts were 0, on the real-time clock; 0: since the start */
	uint64_t seen, changed; /* count of latencies in all stages so far; when (ns) it last
				 * changed */
};

struct groups {
	struct group *of; /* [n] */
	int n, n_cores, map, free_places;
	uint64_t idle_ns, next_number;
	unsigned char *histograms; /* struct histograms [core][group] */
	size_t of_core;		   /* bytes from those of a core to those of the next one */
	struct histograms *ended;  /* of all groups whose places were freed */
	volatile __u32 *epoch;	   /* of the programs; they look up places again in a new epoch */
	volatile __u64 *n_ended;
};

struct histogram *groups_histogram(const struct groups *g, int core, int place, int stage);
/* Before the programs are attached. */
void groups_begin(struct groups *g);
/* Find new groups. */
void groups_look(struct groups *g);
/* Call it at now (ns), after the latencies were added up in seen_now[n]: when most places are
 * taken, groups without measurements for idle_ns end. */
void groups_age(struct groups *g, const uint64_t *seen_now, uint64_t now);
/* Whether the place belongs to a group. */
bool group_is_printed(const struct groups *g, int place);

#endif
