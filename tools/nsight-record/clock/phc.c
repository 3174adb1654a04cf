// SPDX-License-Identifier: GPL-2.0-only
/*
 * PHC readings, best method first:
 * precise: the device latches both clocks at one instant (PTM and the like);
 * extended: the driver reads CLOCK_REALTIME right around the register access;
 * offset: the PTP core reads CLOCK_REALTIME before and after the driver's call.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/net_tstamp.h>
#include <linux/ptp_clock.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phc.h"

#define N_SAMPLES 5

int phc_of_iface(const char *iface)
{
	struct ethtool_ts_info info = {.cmd = ETHTOOL_GET_TS_INFO};
	struct ifreq req = {.ifr_data = (void *)&info};
	int fd, ret;

	if (strlen(iface) >= IFNAMSIZ || !if_nametoindex(iface))
		return -2;
	strcpy(req.ifr_name, iface);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	ret = ioctl(fd, SIOCETHTOOL, &req);
	close(fd);
	return ret ? -1 : info.phc_index;
}

int phc_open(struct phc *p, const char *path)
{
	const char *base = strrchr(path, '/');
	struct ptp_clock_caps caps;

	base = base ? base + 1 : path;
	snprintf(p->name, sizeof(p->name), "%s", base);
	/* The name goes into a tab-separated line. */
	if (strpbrk(p->name, "\t\n :"))
		return -EINVAL;
	p->method = NULL;
	p->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (p->fd < 0)
		return -errno;
	if (ioctl(p->fd, PTP_CLOCK_GETCAPS, &caps)) {
		int err = errno;

		close(p->fd);
		return -err;
	}
	return 0;
}

static int64_t ns(const struct ptp_clock_time *t)
{
	return t->sec * 1000000000LL + t->nsec;
}

/* Keep in @best the reading whose bracket is tightest. */
static void keep(struct phc_reading *best, int64_t before, int64_t phc, int64_t after)
{
	if (after < before)
		return; /* CLOCK_REALTIME was stepped back in between */
	if (best->after >= best->before && best->after - best->before <= after - before)
		return;
	*best = (struct phc_reading){before, phc, after};
}

static int read_precise(int fd, struct phc_reading *best)
{
	struct ptp_sys_offset_precise o = {0};

	if (ioctl(fd, PTP_SYS_OFFSET_PRECISE, &o))
		return -errno;
	keep(best, ns(&o.sys_realtime), ns(&o.device), ns(&o.sys_realtime));
	return 0;
}

static int read_extended(int fd, struct phc_reading *best)
{
	struct ptp_sys_offset_extended o = {.n_samples = N_SAMPLES};

	if (ioctl(fd, PTP_SYS_OFFSET_EXTENDED, &o))
		return -errno;
	for (int i = 0; i < N_SAMPLES; i++)
		keep(best, ns(&o.ts[i][0]), ns(&o.ts[i][1]), ns(&o.ts[i][2]));
	return 0;
}

static int read_offset(int fd, struct phc_reading *best)
{
	struct ptp_sys_offset o = {.n_samples = N_SAMPLES};

	if (ioctl(fd, PTP_SYS_OFFSET, &o))
		return -errno;
	for (int i = 0; i < N_SAMPLES; i++)
		keep(best, ns(&o.ts[2 * i]), ns(&o.ts[2 * i + 1]), ns(&o.ts[2 * i + 2]));
	return 0;
}

static const struct {
	const char *name;
	int (*read)(int fd, struct phc_reading *best);
} methods[] = {
	{"precise", read_precise},
	{"extended", read_extended},
	{"offset", read_offset},
};

int phc_read(struct phc *p, struct phc_reading *r)
{
	int err = -EOPNOTSUPP;

	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
		if (p->method && strcmp(p->method, methods[i].name))
			continue;
		*r = (struct phc_reading){.before = 1, .after = 0};
		err = methods[i].read(p->fd, r);
		if (err)
			continue;
		p->method = methods[i].name;
		return r->after < r->before ? -EAGAIN : 0;
	}
	return err;
}
