/* SPDX-License-Identifier: GPL-2.0-only */
/* Points and sockets: what is loaded, attached by links that end with this process, and counted. */
#ifndef NSIGHT_ATTACH_H
#define NSIGHT_ATTACH_H

#include "../../bpf/capsule.h"

#include <stdbool.h>
#include <stdint.h>

#define MOST_DEVICES ((NSC_POINTS - 1) / 2)
#define MOST_GUARDS  4096

struct device {
	const char *netns; /* path */
	uint32_t ifindex, namespace_number;
	bool ethernet, boundary, bridged;
	uint64_t cookie, inode; /* of the namespace, for the first device that is in it */
};

struct attached {
	struct nsc_config *config; /* shared with the programs */
	int records, counts;	   /* maps */
};

/*
 * Load everything, with these settings; nothing is attached yet. The devices' points have the
 * numbers 1, 2 (ingress and egress of the first), 3, 4 and so on.
 */
struct attached attach_load(struct device *devices, int n, const struct nsc_config *config,
			    uint16_t session, uint32_t ring_bytes, bool match);
/* Attach the points, and then the sockets of this cgroup (version 2). */
void attach_all(const struct device *devices, int n, const char *cgroup, bool match);
/* Take capsules off where packets go out of these devices, which are no points. */
void attach_guards(const struct device *devices, int n, uint16_t session);
enum existing {
	FOLLOW,	  /* the filter */
	RELEASE,  /* take what was set here; marks of other programs stay */
	CLEAR_ALL /* those of a killed one, which look like any other's */
};

/*
 * Have the connections that there are already do so. How many were changed; *refused: the kernel
 * did not let others be changed.
 */
uint64_t attach_existing(const struct device *devices, int n, enum existing what,
			 uint64_t *refused);
/* Of the sockets first, so that no new capsule comes when the points are gone. */
void attach_release_sockets(void);
void attach_release_points(void);
/* The counts of all cores as JSON. */
void attach_print_counts(char *to, uint32_t bytes);

#endif
