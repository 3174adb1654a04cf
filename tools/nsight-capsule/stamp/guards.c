// SPDX-License-Identifier: GPL-2.0-only
#include "guards.h"
#include "fail.h"
#include "links.h"
#include "namespaces.h"
#include "spaces.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <linux/if_link.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * link: of the guard; -1: none. known: nsight-capsule has looked at the device. exposed: packets
 * left it before it had a guard. gone: without being known.
 */
struct guarded {
	const struct space *space;
	uint64_t inode, cookie;
	uint32_t ifindex;
	int link;
	bool known, up, exposed, gone, inward;
	char name[IFNAMSIZ], kind[16];
};

static struct guarded guarded[MOST_GUARDS];
static int n_guarded, programs[2]; /* for devices without and with Ethernet */
static uint64_t n_missed;
static bool guarding;

static struct guarded *find(uint64_t inode, uint64_t cookie, uint32_t ifindex)
{
	for (int i = 0; i < n_guarded; i++)
		if (guarded[i].ifindex == ifindex && guarded[i].inode == inode &&
		    guarded[i].cookie == cookie)
			return &guarded[i];
	return NULL;
}

static void forget(struct guarded *at)
{
	if (at->link >= 0)
		close(at->link);
	*at = guarded[--n_guarded];
}

static struct guarded *add(uint64_t inode, uint64_t cookie, uint32_t ifindex)
{
	if (n_guarded == MOST_GUARDS) {
		n_missed++;
		return NULL;
	}
	guarded[n_guarded] =
		(struct guarded){.inode = inode, .cookie = cookie, .ifindex = ifindex, .link = -1};
	return &guarded[n_guarded++];
}

static struct guarded *add_device(const struct device *device)
{
	struct guarded *at = add(device->inode, device->cookie, device->ifindex);

	if (at)
		at->inward = device->inward;
	return at;
}

/* Whether the device of the current namespace has sent anything. */
static bool has_sent(const char *name)
{
	struct ifaddrs *list, *each;
	bool sent = true;

	if (getifaddrs(&list))
		return true;
	for (each = list; each; each = each->ifa_next)
		if (each->ifa_data && !strcmp(each->ifa_name, name) &&
		    (!each->ifa_addr || each->ifa_addr->sa_family == AF_PACKET))
			sent = ((struct rtnl_link_stats *)each->ifa_data)->tx_packets;
	freeifaddrs(list);
	return sent;
}

/* In the device's namespace. False: errno says why not; ENODEV: there is no such device. */
static bool guard(struct guarded *at, bool ethernet)
{
	char name[IFNAMSIZ];

	if (!guarding)
		return true;
	at->exposed = true;
	at->link = attach_link(programs[ethernet], at->ifindex, !at->inward);
	if (at->link < 0)
		return false;
	at->exposed = !if_indextoname(at->ifindex, name) || has_sent(name);
	return true;
}

/* Whether packets for a guest pass the device's ingress. */
static bool is_inward(const char *kind)
{
	return !strcmp(kind, "macvtap") || !strcmp(kind, "ipvtap");
}

/* A device that came, in the current namespace. */
static void came(const struct space *space, uint32_t ifindex, const char *name, const char *kind,
		 bool ethernet, bool up)
{
	struct guarded *at = find(space->inode, space->cookie, ifindex);

	if (!at)
		at = add(space->inode, space->cookie, ifindex);
	if (!at)
		return;
	at->space = space;
	at->up |= up;
	at->inward = is_inward(kind);
	snprintf(at->name, sizeof(at->name), "%s", name);
	snprintf(at->kind, sizeof(at->kind), "%s", kind);
	if (at->link < 0 && !at->known)
		at->gone = !guard(at, ethernet);
}

/* All devices of the current namespace. */
static void all_came(const struct space *space)
{
	struct if_nameindex *list = if_nameindex();
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	for (struct if_nameindex *each = list; each && each->if_index; each++) {
		struct ifreq flags = {0}, type = {0};

		strcpy(flags.ifr_name, each->if_name);
		strcpy(type.ifr_name, each->if_name);
		if (ioctl(fd, SIOCGIFFLAGS, &flags) || ioctl(fd, SIOCGIFHWADDR, &type) ||
		    flags.ifr_flags & IFF_LOOPBACK)
			continue;
		came(space, each->if_index, each->if_name, "",
		     type.ifr_hwaddr.sa_family == ARPHRD_ETHER, flags.ifr_flags & IFF_UP);
	}
	if_freenameindex(list);
	close(fd);
}

int guards_watch(uint16_t session, bool wanted)
{
	struct rlimit files;
	int fd = links_open();

	if (fd < 0)
		fail(EXIT_REFUSED, NULL, "watching devices: %s", strerror(errno));
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	guarding = wanted;
	for (int ethernet = 0; ethernet < 2 && guarding; ethernet++)
		programs[ethernet] = attach_load_guard(ethernet, session);
	n_missed += !spaces_find(NULL);
	return fd;
}

void guards_attach(const struct device *devices, int n)
{
	for (int i = 0; i < n; i++) {
		const struct device *device = &devices[i];
		struct guarded *at;

		/* Else the namespace was removed, and its devices with it. */
		if (!namespace_enter(device->netns, device->cookie, device->inode))
			continue;
		at = add_device(device);
		if (at && guard(at, device->ethernet))
			at->known = true;
		else if (!at || errno != ENODEV)
			fail(EXIT_REFUSED,
			     errno == EMFILE ? "raise the limit of open files (ulimit -n)"
					     : "--leave lets capsules leave this kernel",
			     "device %u of %s, which leads out and is no point: %s",
			     device->ifindex, device->netns, strerror(errno));
		else
			forget(at);
		namespace_leave();
	}
}

static bool is_point(const struct device *points, int n, const struct space *space,
		     uint32_t ifindex)
{
	for (int i = 0; i < n; i++)
		if (points[i].cookie == space->cookie && points[i].ifindex == ifindex)
			return true;
	return false;
}

/* The namespace was deleted, and its devices with it. */
static void drop(const struct space *space)
{
	for (int i = n_guarded - 1; i >= 0; i--)
		if (guarded[i].cookie == space->cookie && !guarded[i].gone)
			forget(&guarded[i]);
	spaces_drop(space);
}

static void link_came(const struct space *space, const struct link_change *change)
{
	struct guarded *at;

	if (namespace_enter(space->path, space->cookie, space->inode)) {
		came(space, change->ifindex, change->name, change->kind, change->ethernet,
		     change->up);
		namespace_leave();
		return;
	}
	if (!guarding || find(space->inode, space->cookie, change->ifindex))
		return;
	at = add(space->inode, space->cookie, change->ifindex);
	if (!at)
		return;
	at->space = space;
	at->exposed = at->gone = true;
	snprintf(at->name, sizeof(at->name), "%s", change->name);
	snprintf(at->kind, sizeof(at->kind), "%s", change->kind);
}

static void link_gone(const struct space *space, uint32_t ifindex, struct device *points, int n)
{
	struct guarded *at = find(space->inode, space->cookie, ifindex);

	for (int i = 0; i < n; i++)
		if (points[i].cookie == space->cookie && points[i].ifindex == ifindex)
			points[i].ifindex = 0; /* another device may get that index */
	if (at && !at->known && at->exposed)
		at->gone = true;
	else if (at)
		forget(at);
}

/* Returns whether there may be a namespace that is not watched yet. */
static bool apply(const struct link_change *change, struct device *points, int n)
{
	const struct space *space = spaces_of(change->watch);

	if (change->what == MISSED)
		n_missed++;
	if (change->what == MISSED || !space)
		return true;
	switch (change->what) {
	case LINK_NEW:
	case LINK_UP:
		if (!change->loopback && !is_point(points, n, space, change->ifindex))
			link_came(space, change);
		return change->what == LINK_NEW;
	case LINK_GONE:
		link_gone(space, change->ifindex, points, n);
		return true; /* it may have moved there */
	case ADDRESS_NEW:
	case ADDRESS_GONE:
		attach_address(points, n, space->cookie, &change->address,
			       change->what == ADDRESS_NEW);
		return false;
	case NAMESPACE_GONE:
		drop(space);
		return true; /* its inode number may have a new owner */
	default:
		return false;
	}
}

bool guards_changed(struct device *points, int n)
{
	static bool more;
	struct link_change change;

	if (links_next(&change)) {
		more |= apply(&change, points, n);
		return true;
	}
	if (more)
		n_missed += !spaces_find(all_came);
	more = false;
	return false;
}

static int print_hex(const char *text, char *to, uint32_t bytes)
{
	int n = 0;

	for (const unsigned char *c = (const void *)text; *c && n + 4u < bytes; c++)
		n += snprintf(to + n, bytes - n, "%02x", *c);
	return n;
}

/* Names of devices and namespaces as hexadecimal digits: they may have any characters. */
static int print_one(const struct guarded *at, char *to, uint32_t bytes)
{
	int n = snprintf(to, bytes,
			 "{\"inode\": %" PRIu64 ", \"cookie\": %" PRIu64
			 ", \"ifindex\": %u, \"gone\": %s, \"exposed\": %s, \"kind\": \"%s\", "
			 "\"name\": \"",
			 at->inode, at->cookie, at->ifindex, at->gone ? "true" : "false",
			 at->exposed ? "true" : "false", at->kind);

	n += print_hex(at->name, to + n, bytes - n);
	n += snprintf(to + n, bytes - n, "\", \"netns\": \"");
	n += print_hex(at->space->path, to + n, bytes - n);
	return n + snprintf(to + n, bytes - n, "\"}");
}

void guards_print(char *to, uint32_t bytes)
{
	uint32_t at = snprintf(to, bytes, "{\"missed\": %" PRIu64 ", \"devices\": [", n_missed);
	bool more = false;

	for (int i = n_guarded - 1; i >= 0 && at + 1024 < bytes; i--) {
		struct guarded *each = &guarded[i];

		if (each->known || !(each->up || each->gone))
			continue;
		at += snprintf(to + at, bytes - at, more ? ", " : "");
		at += print_one(each, to + at, bytes - at);
		more = true;
		if (each->gone) /* that is all that can be said of it */
			forget(each);
	}
	snprintf(to + at, bytes - at, "]}");
}

bool guards_keep(const struct device *device, bool *exposed)
{
	struct guarded *at = find(device->inode, device->cookie, device->ifindex);
	bool there = true;

	if (at && at->inward != device->inward) { /* its kind was not known */
		forget(at);
		at = NULL;
	}
	if (!at && namespace_enter(device->netns, device->cookie, device->inode)) {
		at = add_device(device);
		there = at && guard(at, device->ethernet);
		namespace_leave();
	}
	*exposed = !at || at->exposed;
	if (at && there)
		at->known = true;
	else if (at)
		forget(at);
	return at && there;
}

void guards_remove(const struct device *device)
{
	struct guarded *at = find(device->inode, device->cookie, device->ifindex);

	if (!at)
		return;
	if (at->link >= 0)
		close(at->link);
	at->link = -1;
	at->known = true;
}
