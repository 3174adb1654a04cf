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
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the headers of Debian 12. */
#define TCX_INGRESS 46
#define TCX_EGRESS  47
#define TCX_BEFORE  (1u << 3)

static struct nsight_stamp_bpf *sockets, *points[NSC_POINTS];
static struct nsight_stamp_bpf *guards[2]; /* for devices without and with Ethernet */
static int links[NSC_POINTS];
static struct bpf_link *cgroup_link;

static const char *const count_names[] = {
	[NSC_C_DRAWN] = "drawn",
	[NSC_C_BORN] = "born",
	[NSC_C_SKIP_MTU] = "skip_mtu",
	[NSC_C_SKIP_GSO] = "skip_gso",
	[NSC_C_SKIP_FRAGMENT] = "skip_fragment",
	[NSC_C_SKIP_MULTICAST] = "skip_multicast",
	[NSC_C_SKIP_PADDED] = "skip_padded",
	[NSC_C_SKIP_TUNNEL] = "skip_tunnel",
	[NSC_C_SKIP_MEMORY] = "skip_memory",
	[NSC_C_SKIP_ROOM] = "skip_room",
	[NSC_C_STAMPED] = "stamped",
	[NSC_C_DUMPED] = "dumped",
	[NSC_C_DUMP_LOST] = "dump_lost",
	[NSC_C_CAME] = "came",
	[NSC_C_ENDED] = "ended",
	[NSC_C_END_LOST] = "end_lost",
	[NSC_C_LEFT] = "left",
	[NSC_C_LEFT_LOST] = "left_lost",
	[NSC_C_COPIES] = "copies",
	[NSC_C_FOREIGN] = "foreign",
	[NSC_C_FORGED] = "forged",
	[NSC_C_NOT_WRITTEN] = "not_written",
	[NSC_C_NOT_STRIPPED] = "not_stripped",
	[NSC_C_TAKEN_OFF] = "taken_off",
	[NSC_C_MATCHED] = "matched",
	[NSC_C_MATCH_LOST] = "match_lost",
	[NSC_C_UNMATCHABLE] = "unmatchable",
};

/* Whether this is the first device of its namespace, so that each namespace is handled once. */
static bool first_there(const struct device *devices, int i)
{
	for (int j = 0; j < i; j++)
		if (devices[j].namespace_number == devices[i].namespace_number)
			return false;
	return true;
}

static void add_address(uint32_t number, const struct sockaddr *from)
{
	struct {
		uint32_t number, address[4];
	} key = {.number = number};
	uint8_t one = 1;

	if (from->sa_family == AF_INET) {
		key.address[2] = htonl(0xffff);
		key.address[3] = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
	} else if (from->sa_family == AF_INET6) {
		memcpy(key.address, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
	} else {
		return;
	}
	bpf_map_update_elem(bpf_map__fd(sockets->maps.addresses), &key, &one, BPF_ANY);
}

static void must_enter(const struct device *device)
{
	if (!namespace_enter(device->netns, device->cookie, device->inode))
		fail(EXIT_REFUSED, "check that the namespace is still there, and start again",
		     "%s: it is no longer the namespace that was looked at", device->netns);
}

/* Learn the addresses of the device's namespace, and its cookie. */
static void learn(struct device *device)
{
	struct ifaddrs *list, *each;
	struct stat is;
	uint8_t one = 1;

	must_enter(device);
	if (getifaddrs(&list))
		fail(EXIT_REFUSED, NULL, "%s: addresses: %s", device->netns, strerror(errno));
	for (each = list; each; each = each->ifa_next)
		if (each->ifa_addr)
			add_address(device->namespace_number, each->ifa_addr);
	freeifaddrs(list);
	device->cookie = namespace_cookie();
	if (!device->cookie || stat("/proc/thread-self/ns/net", &is))
		fail(EXIT_REFUSED, "Linux 5.14 and later have it", "%s: its cookie: %s",
		     device->netns, strerror(errno));
	device->inode = is.st_ino;
	bpf_map_update_elem(bpf_map__fd(sockets->maps.namespaces), &device->cookie, &one, BPF_ANY);
	namespace_leave();
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

static void share(struct bpf_map *to, const struct bpf_map *from)
{
	if (bpf_map__reuse_fd(to, bpf_map__fd(from)))
		refused("BPF maps");
}

static struct nsight_stamp_bpf *load_point(const struct device *device, int number, bool egress,
					   uint16_t session, bool match)
{
	struct nsight_stamp_bpf *p = nsight_stamp_bpf__open();

	if (!p)
		refused("BPF programs");
	p->rodata->point = number;
	p->rodata->namespace_number = device->namespace_number;
	p->rodata->ethernet = device->ethernet;
	p->rodata->egress = egress;
	p->rodata->boundary = device->boundary;
	p->rodata->bridged = device->bridged;
	p->rodata->session = session;
	share(p->maps.config, sockets->maps.config);
	share(p->maps.counts, sockets->maps.counts);
	share(p->maps.records, sockets->maps.records);
	share(p->maps.addresses, sockets->maps.addresses);
	share(p->maps.last_chosen, sockets->maps.last_chosen);
	bpf_map__set_autocreate(p->maps.namespaces, false);
	bpf_map__set_autocreate(p->maps.connections, false);
	bpf_program__set_autoload(p->progs.at_socket, false);
	bpf_program__set_autoload(p->progs.each_connection, false);
	bpf_program__set_autoload(match ? p->progs.at_point : p->progs.at_match, false);
	if (nsight_stamp_bpf__load(p))
		refused("BPF program of a point");
	return p;
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
		}
		if (first_there(devices, i))
			learn(&devices[i]);
	}
	made.records = bpf_map__fd(sockets->maps.records);
	made.counts = bpf_map__fd(sockets->maps.counts);
	made.config = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_SHARED,
			   bpf_map__fd(sockets->maps.config), 0);
	if (made.config == MAP_FAILED)
		refused("BPF map of settings");
	return made;
}

/*
 * A TCX link, which libbpf 1.1 cannot create. It ends when its last descriptor is closed. It goes
 * before existing programs: one of them might pass the packet on without running those after it.
 */
static int tcx_link(int program, uint32_t ifindex, bool egress)
{
	union bpf_attr attr = {0};

	attr.link_create.prog_fd = program;
	attr.link_create.target_ifindex = ifindex;
	attr.link_create.attach_type = egress ? TCX_EGRESS : TCX_INGRESS;
	attr.link_create.flags = TCX_BEFORE;
	return syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));
}

void attach_all(const struct device *devices, int n, const char *cgroup, bool match)
{
	int fd;

	for (int i = 0; i < n; i++) {
		must_enter(&devices[i]);
		for (int way = 0; way < 2; way++) {
			int number = 1 + 2 * i + way;
			const struct bpf_program *program = match ? points[number]->progs.at_match
								  : points[number]->progs.at_point;

			links[number] = tcx_link(bpf_program__fd(program), devices[i].ifindex, way);
			if (links[number] < 0)
				fail(EXIT_REFUSED, "check that the device is still there",
				     "device %u of %s: %s", devices[i].ifindex, devices[i].netns,
				     strerror(errno));
		}
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

void attach_guards(const struct device *devices, int n, uint16_t session)
{
	struct rlimit files;

	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	for (int i = 0; i < n; i++) {
		struct nsight_stamp_bpf **guard = &guards[devices[i].ethernet];

		if (!*guard)
			*guard = load_point(&devices[i], NSC_GUARD, true, session, false);
		/* Else the namespace was removed, and its devices with it. */
		if (!namespace_enter(devices[i].netns, devices[i].cookie, devices[i].inode))
			continue;
		/* The link ends with this process. */
		if (tcx_link(bpf_program__fd((*guard)->progs.at_point), devices[i].ifindex, true) <
			    0 &&
		    errno != ENODEV)
			fail(EXIT_REFUSED,
			     errno == EMFILE ? "raise the limit of open files (ulimit -n)"
					     : "--leave lets capsules leave this kernel",
			     "device %u of %s, which leads out and is no point: %s",
			     devices[i].ifindex, devices[i].netns, strerror(errno));
		namespace_leave();
	}
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
	for (int i = 1; i < NSC_POINTS; i++) {
		if (!points[i])
			continue;
		if (links[i] >= 0)
			close(links[i]);
		nsight_stamp_bpf__destroy(points[i]);
		points[i] = NULL;
	}
}

static uint64_t sum_of_cores(int map, uint32_t key)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t values[cpus > 0 ? cpus : 1], sum = 0;

	if (cpus <= 0 || bpf_map_lookup_elem(map, &key, values))
		return 0;
	for (int i = 0; i < cpus; i++)
		sum += values[i];
	return sum;
}

void attach_print_counts(char *to, uint32_t bytes)
{
	int map = bpf_map__fd(sockets->maps.counts);
	uint32_t at = snprintf(to, bytes, "{");
	bool more = false;

	for (uint32_t point = 0; point < NSC_POINTS; point++) {
		bool any = false;

		for (uint32_t what = 0; what < NSC_N_COUNTS; what++) {
			uint64_t n = sum_of_cores(map, point * NSC_N_COUNTS + what);

			if (!n || at + 64 > bytes)
				continue;
			if (!any)
				at += snprintf(to + at, bytes - at, "%s\"%u\": {", more ? ", " : "",
					       point);
			at += snprintf(to + at, bytes - at, "%s\"%s\": %" PRIu64, any ? ", " : "",
				       count_names[what], n);
			any = more = true;
		}
		if (any)
			at += snprintf(to + at, bytes - at, "}");
	}
	snprintf(to + at, bytes - at, "}");
}
