/* SPDX-License-Identifier: GPL-2.0-only */
/* What changes at the devices and addresses of the watched namespaces, as the kernel reports it. */
#ifndef NSIGHT_LINKS_H
#define NSIGHT_LINKS_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct link_change {
	enum {
		LINK_NEW,	/* made, or moved into this namespace */
		LINK_UP,	/* was down before */
		LINK_GONE,	/* deleted, or moved out of this namespace */
		ADDRESS_NEW,	/* this namespace has the address */
		ADDRESS_GONE,	/* ... no longer */
		NAMESPACE_GONE, /* deleted */
		MISSED,		/* some changes: there were too many at once */
	} what;
	int watch; /* which namespace: what links_watch returned */
	uint32_t ifindex;
	bool ethernet, loopback, up;
	char name[IFNAMSIZ], kind[16];
	struct sockaddr_storage address;
};

/* Returns the descriptor to poll; -1: errno says why not. */
int links_open(void);
/* Watch the namespace of this path; -1: errno says why not. */
int links_watch(const char *netns);
/* The next change that is already known. */
bool links_next(struct link_change *change);

#endif
