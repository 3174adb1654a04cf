/* SPDX-License-Identifier: GPL-2.0-only */
/* Paired readings of a PTP hardware clock and CLOCK_REALTIME. */
#ifndef NSIGHT_PHC_H
#define NSIGHT_PHC_H

#include <stdint.h>

struct phc {
	int fd;
	char name[32];	    /* ptpN */
	const char *method; /* precise, extended or offset; NULL until one has worked */
};

struct phc_reading {
	int64_t before, phc, after; /* ns: realtime, the PHC, realtime */
};

/* The PHC of network interface @iface: its index, -1 none, -2 no such interface. */
int phc_of_iface(const char *iface);

/* Open /dev/ptpN. Returns 0 or -errno. */
int phc_open(struct phc *p, const char *path);

/* Take the tightest of a few readings by the best method. 0 or -errno. */
int phc_read(struct phc *p, struct phc_reading *r);

#endif
