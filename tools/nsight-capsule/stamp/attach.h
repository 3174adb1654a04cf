/* SPDX-License-Identifier: GPL-2.0-only */
/* Points and sockets: programs are loaded, attached by links that end with this process, and their
 * counts are read. */
#ifndef NSIGHT_ATTACH_H
#define NSIGHT_ATTACH_H

#include "../../bpf/capsule.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define MOST_DEVICES ((NSC_POINTS - 1) / 2)

struct device {
	const char *netns; /* path */
	uint32_t ifindex, namespace_number;
	bool ethernet, boundary, bridged;
	bool inward; /* packets leave this kernel at ingress: macvtap hands them to a guest there */
	bool wraps;  /* packets that come in may be encrypted when they are forwarded: take
		      * capsules off */
	uint8_t kind;		/* below NSC_KINDS */
	uint64_t inode, cookie; /* of the namespace that was looked at; 0: whichever netns leads
				 * to. Those of the first device in it are always known */
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
/*
 * Load and attach points for devices[i], which came later or replaces one that is gone. False: it
 * does not exist any more, or the kernel refused.
 */
bool attach_later(struct device *devices, int i, uint16_t session, bool match);
/* An address that the namespace with this cookie now has, or no longer has. */
void attach_address(const struct device *devices, int n, uint64_t cookie,
		    const struct sockaddr_storage *address, bool present);
/* Load the program of guards, for either direction; returns its descriptor. */
int attach_load_guard(bool ethernet, uint16_t session);
/* Attach a tc program to a device of the current namespace, until the returned link is closed. -1:
 * errno says why not. */
int attach_link(int program, uint32_t ifindex, bool egress);
enum existing {
	FOLLOW,	  /* apply the filter */
	RELEASE,  /* remove marks that were set here; marks of other programs stay */
	CLEAR_ALL /* remove the marks of a killed one, which look like any others */
};

/*
 * Do this for existing connections. Returns how many were changed; *refused: for how many the
 * kernel did not allow it.
 */
uint64_t attach_existing(const struct device *devices, int n, enum existing what,
			 uint64_t *refused);
/* Sockets first, so that there are no new capsules when the points are detached. */
void attach_release_sockets(void);
void attach_release_points(void);

#endif
