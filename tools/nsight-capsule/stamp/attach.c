// SPDX-License-Identifier: GPL-2.0-only
#include "attach.h"
#include "fail.h"
#include "namespaces.h"
#include "nsight-stamp.skel.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the headers of Debian 12. */
#define TCX_INGRESS 46
#define TCX_EGRESS  47
#define TCX_BEFORE  (1u << 3)

static struct nsight_stamp_bpf *sockets, *points[NSC_POINTS];
static int links[NSC_POINTS];
static struct bpf_link *cgroup_link;
static struct nsc_config *shared; /* with the programs */

/* Whether this is the first device of its namespace, so that each namespace is handled once. */
static bool first_there(const struct device *devices, int i)
{
	for (int j = 0; j < i; j++)
		if (devices[j].namespace_number == devices[i].namespace_number)
			return false;
	return true;
}

/* An address of a namespace; false: not one of IP. */
static bool set_address(uint32_t number, const struct sockaddr *from, bool present)
{
	struct {
		uint32_t number, address[4];
	} key = {.number = number};
	int map = bpf_map__fd(sockets->maps.addresses);
	uint8_t one = 1;

	if (from->sa_family == AF_INET) {
		key.address[2] = htonl(0xffff);
		key.address[3] = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
	} else if (from->sa_family == AF_INET6) {
		memcpy(key.address, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
	} else {
		return false;
	}
	return present ? !bpf_map_update_elem(map, &key, &one, BPF_ANY)
		       : !bpf_map_delete_elem(map, &key);
}

void attach_address(const struct device *devices, int n, uint64_t cookie,
		    const struct sockaddr_storage *address, bool present)
{
	for (int i = 0; i < n; i++) {
		if (devices[i].cookie != cookie)
			continue;
		set_address(devices[i].namespace_number, (const struct sockaddr *)address, present);
		return;
	}
}

static void must_enter(const struct device *device)
{
	if (!namespace_enter(device->netns, device->cookie, device->inode))
		fail(EXIT_REFUSED, "check that the namespace is still there, and start again",
		     "%s: it is no longer the namespace that was looked at", device->netns);
}

/* Learn the addresses of the current namespace, which is the device's, and its cookie. */
static bool learn(struct device *device)
{
	struct ifaddrs *list, *each;
	struct stat is;
	uint8_t one = 1;

	if (getifaddrs(&list))
		return false;
	for (each = list; each; each = each->ifa_next)
		if (each->ifa_addr)
			set_address(device->namespace_number, each->ifa_addr, true);
	freeifaddrs(list);
	device->cookie = namespace_cookie();
	if (!device->cookie || stat("/proc/thread-self/ns/net", &is))
		return false;
	device->inode = is.st_ino;
	return !bpf_map_update_elem(bpf_map__fd(sockets->maps.namespaces), &device->cookie, &one,
				    BPF_ANY);
}

static void refused(const char *what)
{
	int error = errno;

	fail(EXIT_REFUSED,
	     error == EPERM ? "run it as root; a locked-down kernel may refuse BPF"
			    : "see the messages above",
	     "%s: %s", what, strerror(error));
}

static void load_sockets(const struct nsc_config *config, uint16_t session, uint32_t ring_bytes,
			 bool match)
{
	uint32_t zero = 0;

	sockets = nsight_stamp_bpf__open();
	if (!sockets)
		refused("BPF programs");
	sockets->rodata->session = session;
	bpf_map__set_max_entries(sockets->maps.records, ring_bytes);
	bpf_program__set_autoload(sockets->progs.at_point, false);
	bpf_program__set_autoload(sockets->progs.at_match, false);
	bpf_program__set_autoload(sockets->progs.at_socket, !match);
	bpf_program__set_autoload(sockets->progs.each_connection, !match);
	if (nsight_stamp_bpf__load(sockets))
		refused("BPF programs of sockets");
	bpf_map_update_elem(bpf_map__fd(sockets->maps.config), &zero, config, BPF_ANY);
}

static bool share(struct nsight_stamp_bpf *p)
{
	return !bpf_map__reuse_fd(p->maps.config, bpf_map__fd(sockets->maps.config)) &&
	       !bpf_map__reuse_fd(p->maps.counts, bpf_map__fd(sockets->maps.counts)) &&
	       !bpf_map__reuse_fd(p->maps.records, bpf_map__fd(sockets->maps.records)) &&
	       !bpf_map__reuse_fd(p->maps.point_devices,
				  bpf_map__fd(sockets->maps.point_devices)) &&
	       !bpf_map__reuse_fd(p->maps.decided, bpf_map__fd(sockets->maps.decided)) &&
	       !bpf_map__reuse_fd(p->maps.addresses, bpf_map__fd(sockets->maps.addresses)) &&
	       !bpf_map__reuse_fd(p->maps.last_chosen, bpf_map__fd(sockets->maps.last_chosen));
}

/* NULL: errno says why not. */
static struct nsight_stamp_bpf *load_point(const struct device *device, int number, bool egress,
					   uint16_t session, bool match)
{
	struct nsight_stamp_bpf *p = nsight_stamp_bpf__open();
	int error;

	if (!p)
		return NULL;
	p->rodata->point = number;
	p->rodata->namespace_number = device->namespace_number;
	p->rodata->ethernet = device->ethernet;
	p->rodata->egress = egress;
	p->rodata->boundary = device->boundary;
	p->rodata->outward =
		(device->boundary && egress != device->inward) || (device->wraps && !egress);
	p->rodata->bridged = device->bridged;
	p->rodata->session = session;
	p->rodata->class_bit = 1u << (2 * device->kind + egress);
	p->rodata->stacked = NSC_STACKED >> device->kind & 1;
	p->rodata->reroutes = device->kind == NSC_MACVLAN;
	bpf_map__set_autocreate(p->maps.namespaces, false);
	bpf_map__set_autocreate(p->maps.connections, false);
	bpf_program__set_autoload(p->progs.at_socket, false);
	bpf_program__set_autoload(p->progs.each_connection, false);
	bpf_program__set_autoload(match ? p->progs.at_point : p->progs.at_match, false);
	if (share(p) && !nsight_stamp_bpf__load(p))
		return p;
	error = errno;
	nsight_stamp_bpf__destroy(p);
	errno = error;
	return NULL;
}

int attach_load_guard(bool ethernet, uint16_t session)
{
	struct device any = {.ethernet = ethernet, .boundary = true};
	struct nsight_stamp_bpf *guard = load_point(&any, NSC_GUARD, true, session, false);

	if (!guard)
		refused("BPF program of guards");
	return bpf_program__fd(guard->progs.at_point);
}

/* A kernel without TCX links also lacks other features, which only the verifier would report. */
static void need_links(void)
{
	__u32 n = 0;

	if (bpf_prog_query(1, TCX_INGRESS, 0, NULL, NULL, &n) == -EINVAL)
		fail(EXIT_REFUSED,
		     "boot Linux 6.6 or later; nsight-record and nsight-monitor need less",
		     "this kernel has no links of tc programs (TCX)");
}

struct attached attach_load(struct device *devices, int n, const struct nsc_config *config,
			    uint16_t session, uint32_t ring_bytes, bool match)
{
	struct attached made;

	need_links();
	load_sockets(config, session, ring_bytes, match);
	for (int i = 0; i < n; i++) {
		for (int way = 0; way < 2; way++) {
			int number = 1 + 2 * i + way;

			points[number] = load_point(&devices[i], number, way, session, match);
			links[number] = -1;
			if (!points[number])
				refused("BPF program of a point");
		}
		if (!first_there(devices, i))
			continue;
		must_enter(&devices[i]);
		if (!learn(&devices[i]))
			fail(EXIT_REFUSED, "Linux 5.14 and later have cookies of namespaces",
			     "%s: its addresses and cookie: %s", devices[i].netns, strerror(errno));
		namespace_leave();
	}
	made.records = bpf_map__fd(sockets->maps.records);
	made.counts = bpf_map__fd(sockets->maps.counts);
	shared = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_SHARED,
		      bpf_map__fd(sockets->maps.config), 0);
	made.config = shared;
	if (shared == MAP_FAILED)
		refused("BPF map of settings");
	return made;
}

/*
 * A TCX link, which libbpf 1.1 cannot create. It ends when its last descriptor is closed. It goes
 * before existing programs: one of them might pass the packet on without running those after it.
 */
int attach_link(int program, uint32_t ifindex, bool egress)
{
	union bpf_attr attr = {0};

	attr.link_create.prog_fd = program;
	attr.link_create.target_ifindex = ifindex;
	attr.link_create.attach_type = egress ? TCX_EGRESS : TCX_INGRESS;
	attr.link_create.flags = TCX_BEFORE;
	return syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));
}

/* Programs below this device leave the choice of datagrams to it. */
static bool set_point_device(const struct device *device, uint32_t i)
{
	static struct {
		uint64_t cookie, ifindex;
	} all[NSC_POINTS / 2];
	uint32_t zero = 0;

	if (NSC_STACKED >> device->kind & 1)
		shared->stacked = 1;
	all[i].cookie = namespace_cookie();
	all[i].ifindex = device->ifindex;
	return !bpf_map_update_elem(bpf_map__fd(sockets->maps.point_devices), &zero, all, BPF_ANY);
}

/* In the device's namespace. False: errno says why not. */
static bool link_point(const struct device *device, int i, bool match)
{
	for (int way = 0; way < 2; way++) {
		int number = 1 + 2 * i + way;
		const struct bpf_program *program =
			match ? points[number]->progs.at_match : points[number]->progs.at_point;

		links[number] = attach_link(bpf_program__fd(program), device->ifindex, way);
		if (links[number] < 0)
			return false;
	}
	return set_point_device(device, i);
}

void attach_all(const struct device *devices, int n, const char *cgroup, bool match)
{
	int fd;

	for (int i = 0; i < n; i++) {
		must_enter(&devices[i]);
		if (!link_point(&devices[i], i, match))
			fail(EXIT_REFUSED, "check that the device is still there",
			     "device %u of %s: %s", devices[i].ifindex, devices[i].netns,
			     strerror(errno));
		namespace_leave();
	}
	if (match || !cgroup)
		return;
	fd = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		fail(EXIT_USAGE, "give a directory of cgroup version 2", "%s: %s", cgroup,
		     strerror(errno));
	cgroup_link = bpf_program__attach_cgroup(sockets->progs.at_socket, fd);
	close(fd);
	if (!cgroup_link)
		fail(EXIT_REFUSED, "give a directory of cgroup version 2", "%s: %s", cgroup,
		     strerror(errno));
}

static void release_point(int number)
{
	if (!points[number])
		return;
	if (links[number] >= 0)
		close(links[number]);
	nsight_stamp_bpf__destroy(points[number]);
	points[number] = NULL;
}

bool attach_later(struct device *devices, int i, uint16_t session, bool match)
{
	bool done;

	for (int way = 0; way < 2; way++) {
		int number = 1 + 2 * i + way;

		release_point(number);
		points[number] = load_point(&devices[i], number, way, session, match);
		links[number] = -1;
		if (!points[number])
			return false;
	}
	if (!namespace_enter(devices[i].netns, devices[i].cookie, devices[i].inode))
		return false;
	done = learn(&devices[i]) && link_point(&devices[i], i, match);
	namespace_leave();
	return done;
}

static void iterate(const struct bpf_link *link)
{
	int fd = bpf_iter_create(bpf_link__fd(link));
	char nothing[256];

	if (fd < 0)
		return;
	while (read(fd, nothing, sizeof(nothing)) > 0)
		;
	close(fd);
}

uint64_t attach_existing(const struct device *devices, int n, enum existing what,
			 uint64_t *n_refused)
{
	struct bpf_link *link = bpf_program__attach_iter(sockets->progs.each_connection, NULL);

	*n_refused = 0;
	if (!link)
		return 0;
	sockets->bss->choose_none = what != FOLLOW;
	sockets->bss->clear_all = what == CLEAR_ALL;
	sockets->bss->n_changed = sockets->bss->n_refused = 0;
	for (int i = 0; i < n; i++) {
		if (!first_there(devices, i) ||
		    !namespace_enter_again(devices[i].netns, devices[i].cookie, devices[i].inode))
			continue;
		iterate(link);
		namespace_leave();
	}
	bpf_link__destroy(link);
	*n_refused = sockets->bss->n_refused;
	return sockets->bss->n_changed;
}

void attach_release_sockets(void)
{
	bpf_link__destroy(cgroup_link);
	cgroup_link = NULL;
}

void attach_release_points(void)
{
	for (int i = 1; i < NSC_POINTS; i++)
		release_point(i);
}
