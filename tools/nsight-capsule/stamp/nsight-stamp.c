// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-stamp: attaches the programs that put capsules into packets and collect them, and writes
 * what they collect into DIR/capsules. nsight-capsule runs it.
 */
#include "attach.h"
#include "control.h"
#include "counts.h"
#include "fail.h"
#include "guards.h"
#include "spool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char usage[] =
	"usage: nsight-stamp --point NETNS,IFINDEX,NUMBER,FLAGS[,INODE,COOKIE]... [OPTION...] DIR\n"
	"\n"
	"Put capsules into packets and collect them into DIR/capsules, until SIGTERM or SIGINT.\n"
	"\n"
	"      --point P      a device: path of its network namespace, its index, a number of the\n"
	"                     namespace, and letters: e Ethernet, b boundary of the host, i the\n"
	"                     same but packets leave at ingress, s port of a bridge, w may be\n"
	"                     encrypted, A to P the kind of device (A: a NIC), - none; inode\n"
	"                     number and cookie of the namespace, in case\n"
	"                     the path leads to another one\n"
	"      --guard P      a device that leads out and is no point, in the form of --point:\n"
	"                     capsules are taken off there\n"
	"      --set WORDS    settings KEY=VALUE, as at DIR/control\n"
	"      --cgroup DIR   TCP senders of this cgroup (version 2)\n"
	"      --match        read-only mode: record packets by their fields\n"
	"      --clear        only remove the marks that a killed nsight-stamp left\n"
	"      --ring-kb N    memory of the ring buffer, a power of two (default 4096)\n"
	"      --every-ms N   interval at which it is emptied (default 10)\n"
	"      --grace-ms N   time for packets that are on their way at the end (default 200)\n"
	"      --session N    marks the capsules as ours (default: random)\n"
	"\n"
	"Prints \"stamping\" when everything is attached, and counts as JSON at the end.\n"
	"Exit codes: 0 done, 1 the kernel refused, 2 usage, 5 DIR or the disk.\n";

struct arguments {
	struct device devices[MOST_DEVICES], guards[MOST_GUARDS];
	int n, n_guards;
	const char *dir, *cgroup;
	char *set;
	bool match, clear;
	uint64_t ring_kb, every_ms, grace_ms, session;
};

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int sig)
{
	(void)sig;
	asked_to_stop = 1;
}

static bool is_number(const char *text, uint64_t most, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	return !errno && end != text && !*end && *text != '-' && *value <= most;
}

static uint64_t number(const char *text, uint64_t most)
{
	uint64_t value;

	if (!is_number(text, most, &value))
		fail(EXIT_USAGE, "see nsight-stamp --help", "%s is not a number from 0 to %" PRIu64,
		     text, most);
	return value;
}

/* False: a part is missing or not valid. */
static bool parse_device(char *text, struct device *to)
{
	char *rest, *netns = strtok_r(text, ",", &rest), *parts[5];
	uint64_t ifindex, space, inode = 0, cookie = 0;
	const char *kind;

	for (int i = 0; i < 5; i++)
		parts[i] = strtok_r(NULL, ",", &rest);
	if (!parts[2] || !is_number(parts[0], INT32_MAX, &ifindex) ||
	    !is_number(parts[1], INT32_MAX, &space))
		return false;
	if (parts[3] && (!parts[4] || !is_number(parts[3], UINT64_MAX, &inode) ||
			 !is_number(parts[4], UINT64_MAX, &cookie)))
		return false;
	kind = strpbrk(parts[2], "ABCDEFGHIJKLMNOP");
	*to = (struct device){.netns = netns,
			      .ifindex = ifindex,
			      .namespace_number = space,
			      .ethernet = strchr(parts[2], 'e'),
			      .boundary = strchr(parts[2], 'b'),
			      .bridged = strchr(parts[2], 's'),
			      .inward = strchr(parts[2], 'i'),
			      .wraps = strchr(parts[2], 'w'),
			      .kind = kind ? *kind - 'A' : 0,
			      .inode = inode,
			      .cookie = cookie};
	return true;
}

static void add(struct device *devices, int *n, int most, char *text, const char *hint)
{
	if (*n == most)
		fail(EXIT_USAGE, hint, "more than %d devices", most);
	if (!parse_device(text, &devices[(*n)++]))
		fail(EXIT_USAGE, "see nsight-stamp --help",
		     "%s: a device has four or six parts, with numbers", text);
}

static void parse(int argc, char **argv, struct arguments *args)
{
	static const struct option options[] = {
		{"point", 1, NULL, 'p'},   {"guard", 1, NULL, 'G'},    {"set", 1, NULL, 's'},
		{"cgroup", 1, NULL, 'c'},  {"match", 0, NULL, 'm'},    {"clear", 0, NULL, 'C'},
		{"ring-kb", 1, NULL, 'k'}, {"every-ms", 1, NULL, 'e'}, {"grace-ms", 1, NULL, 'g'},
		{"session", 1, NULL, 'S'}, {"help", 0, NULL, 'h'},     {0},
	};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (o) {
		case 'p':
			add(args->devices, &args->n, MOST_DEVICES, optarg,
			    "choose fewer with --point");
			break;
		case 'G':
			add(args->guards, &args->n_guards, MOST_GUARDS, optarg,
			    "more lead out of this machine: --leave lets capsules leave it");
			break;
		case 's':
			args->set = optarg;
			break;
		case 'c':
			args->cgroup = optarg;
			break;
		case 'm':
			args->match = true;
			break;
		case 'C':
			args->clear = true;
			break;
		case 'k':
			args->ring_kb = number(optarg, 1 << 20);
			break;
		case 'e':
			args->every_ms = number(optarg, 10000);
			break;
		case 'g':
			args->grace_ms = number(optarg, 60000);
			break;
		case 'S':
			args->session = number(optarg, 65535);
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(EXIT_USAGE);
		}
	}
	if (!args->n || (!args->clear && optind + 1 != argc))
		fail(EXIT_USAGE, "see nsight-stamp --help", "points and DIR are needed");
	if (args->ring_kb < 4 || args->ring_kb & (args->ring_kb - 1))
		fail(EXIT_USAGE, NULL, "--ring-kb: a power of two from 4");
	args->dir = argv[optind];
}

/* "point I DEVICE": it came later, or replaces devices[I]. */
static bool add_point(struct arguments *args, char *text)
{
	char *rest, *index = strtok_r(text, " ", &rest), *words = strdup(rest); /* kept */
	struct device device;
	uint64_t i;

	if (!index || !is_number(index, MOST_DEVICES - 1, &i) || i > (uint64_t)args->n || !words ||
	    !parse_device(words, &device))
		return false;
	args->devices[i] = device;
	if (!attach_later(args->devices, i, args->session, args->match))
		return false;
	args->n += i == (uint64_t)args->n;
	guards_remove(&device);
	return true;
}

/* "guard DEVICE", "pass DEVICE", "point I DEVICE": what nsight-capsule found out about it. */
static const char *place(struct arguments *args, char *text)
{
	char *rest, *verb = strtok_r(text, " ", &rest);
	struct device device;
	bool exposed = false;

	if (!strcmp(verb, "point"))
		return add_point(args, rest) ? "{}" : "error: it is gone";
	if (!parse_device(rest, &device))
		return "error: no such device";
	if (!strcmp(verb, "pass"))
		guards_remove(&device);
	else if (!guards_keep(&device, &exposed))
		return "error: it is gone";
	return exposed ? "{\"exposed\": true}" : "{\"exposed\": false}";
}

static bool starts(const char *text, const char *with)
{
	return !strncmp(text, with, strlen(with));
}

/*
 * Requests at DIR/control: "counts"; "late" for devices that came; what they are; or settings. The
 * answer is JSON, or "error: ...".
 */
static void answer(int fd, const struct attached *attached, struct arguments *args)
{
	static char text[4096], reply[1 << 16];
	struct sockaddr_un from;
	socklen_t size = sizeof(from);
	ssize_t n = recvfrom(fd, text, sizeof(text) - 1, 0, (struct sockaddr *)&from, &size);
	const char *wrong = "";
	uint64_t refused;

	if (n < 0)
		return;
	text[n] = 0;
	if (!strcmp(text, "counts")) {
		spool_take();
		counts_print(attached->counts, reply, sizeof(reply));
	} else if (!strcmp(text, "late")) {
		guards_print(reply, sizeof(reply));
	} else if (starts(text, "guard ") || starts(text, "pass ") || starts(text, "point ")) {
		strcpy(reply, place(args, text));
	} else if (control_set(attached->config, text, &wrong)) {
		if (!args->match)
			attach_existing(args->devices, args->n, FOLLOW, &refused);
		strcpy(reply, "{}");
	} else {
		snprintf(reply, sizeof(reply), "error: %s: no such setting or value", wrong);
	}
	sendto(fd, reply, strlen(reply), MSG_DONTWAIT, (struct sockaddr *)&from, size);
}

static void follow_devices(struct arguments *args)
{
	while (guards_changed(args->devices, args->n))
		spool_take(); /* the ring must not fill up meanwhile */
}

static void run(struct arguments *args, const struct attached *attached, int control, int links)
{
	struct pollfd wait[] = {{.fd = control, .events = POLLIN}, {.fd = links, .events = POLLIN}};

	while (!asked_to_stop) {
		wait[0].revents = wait[1].revents = 0;
		poll(wait, 2, args->every_ms);
		if (wait[1].revents)
			follow_devices(args);
		if (wait[0].revents & POLLIN)
			answer(control, attached, args);
		spool_take();
	}
}

/*
 * First no new capsules, then time for those on their way, then everything is detached. Marks are
 * removed last: after it is detached, the sockets' program may still run on a core and set another
 * mark.
 */
static void end(struct arguments *args, const struct attached *attached)
{
	uint64_t refused;

	attached->config->threshold = 0;
	attach_release_sockets();
	for (uint64_t waited = 0; waited < args->grace_ms; waited += 10) {
		usleep(10000);
		follow_devices(args);
		spool_take();
	}
	if (!args->match)
		attach_existing(args->devices, args->n, RELEASE, &refused);
	attach_release_points();
}

int main(int argc, char **argv)
{
	static struct arguments args = {.ring_kb = 4096, .every_ms = 10, .grace_ms = 200};
	struct nsc_config config = {
		.most_bytes = 1500, .vxlan_port = 4789, .protocols = 3, .points = ~0u};
	struct sigaction action = {.sa_handler = on_signal};
	static char counts[1 << 16];
	uint64_t existing = 0, refused = 0;
	struct attached attached;
	const char *wrong = "";
	struct spool spool;
	uint16_t session;
	int control, links;

	if (getrandom(&session, sizeof(session), 0) == sizeof(session))
		args.session = session;
	parse(argc, argv, &args);
	if (args.set && !control_set(&config, args.set, &wrong))
		fail(EXIT_USAGE, "see nsight-stamp --help", "--set: %s", wrong);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	attached = attach_load(args.devices, args.n, &config, args.session, args.ring_kb << 10,
			       args.match);
	if (args.clear) {
		printf("{\"cleared\": %" PRIu64 "}\n",
		       attach_existing(args.devices, args.n, CLEAR_ALL, &refused));
		return 0;
	}
	spool_open(args.dir, attached.records, args.session);
	control = control_open(args.dir);
	links = guards_watch(args.session, !args.match && !config.leave);
	guards_attach(args.guards, args.n_guards);
	attach_all(args.devices, args.n, args.cgroup, args.match);
	if (!args.match)
		existing = attach_existing(args.devices, args.n, FOLLOW, &refused);
	printf("stamping\n");
	fflush(stdout);
	run(&args, &attached, control, links);
	end(&args, &attached);
	spool = spool_close();
	control_close(args.dir);
	counts_print(attached.counts, counts, sizeof(counts));
	printf("{\"records\": %" PRIu64 ", \"unwritten\": %" PRIu64 ", \"existing\": %" PRIu64
	       ", \"existing_refused\": %" PRIu64 ", \"counts\": %s}\n",
	       spool.written, spool.unwritten, existing, refused, counts);
	return spool.unwritten ? EXIT_OUTPUT : 0;
}
