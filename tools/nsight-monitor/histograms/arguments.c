// SPDX-License-Identifier: GPL-2.0-only
#include "arguments.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: nsight-histograms [OPTION...]\n"
	"\n"
	"Count how long network messages take from stage to stage of this machine, in histograms\n"
	"in the kernel, and print their sums as a JSON line every interval, until SIGTERM or\n"
	"SIGINT.\n"
	"\n"
	"      --interval-ms N\n"
	"                     between two lines (default 10000)\n"
	"      --duration-ms N\n"
	"                     stop after this time\n"
	"      --port N --peer ADDRESS[/BITS] --pid N --comm NAME --cgroup ID --ifindex N\n"
	"      --netns INODE --netns-cookie N --queue PACKETS\n"
	"                     select messages (default: all)\n"
	"      --group-by port|comm|cgroup|netns|iface\n"
	"                     separate histograms for each value\n"
	"      --groups N     maximum number of groups (default 64); the rest is counted together\n"
	"      --group-idle-ms N\n"
	"                     when three quarters of the groups are taken, groups without new\n"
	"                     latencies for this time end (default 600000)\n"
	"      --stages NAME,...\n"
	"                     measure only these stages\n"
	"      --receive-stamps\n"
	"                     let the kernel timestamp every received packet\n"
	"      --trigger STAGE=NS\n"
	"                     print a line at once if a latency of the stage is NS or more\n"
	"      --trigger-pause-ms N\n"
	"                     for each stage and core, at most one such line in this time\n"
	"                     (default 100)\n"
	"      --no-probes    attach no program to functions of the kernel; for udp-start, one of "
	"the\n"
	"                     root control group serves instead\n"
	"      --cost         print the cost of the BPF programs; this makes them slower\n"
	"      --follow       read new numbers of the filters from standard input, as lines with\n"
	"                     IFINDEX INODE COOKIE CGROUP: 0 for a filter that is not used, and a\n"
	"                     number of which all bits are 1 if nothing has the name\n"
	"      --list-stages  list the stages that this kernel has, and exit\n"
	"\n"
	"Exit codes: 0 done, 1 the kernel refused, 2 usage, 5 nobody reads the lines.\n";

static const char *const group_names[] = {
	[BY_NONE] = "",		[BY_PORT] = "port",   [BY_COMM] = "comm",
	[BY_CGROUP] = "cgroup", [BY_NETNS] = "netns", [BY_IFACE] = "iface",
};
#define N_GROUP_NAMES (sizeof(group_names) / sizeof(*group_names))
#define MOST_GROUPS   4096
#define DAY_MS	      86400000

const char *group_by_name(enum group_by by)
{
	return group_names[by];
}

static uint64_t number(const char *text, uint64_t min, uint64_t max)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value < min || value > max)
		fail(EXIT_USAGE, "see nsight-histograms --help",
		     "%s is not a number from %" PRIu64 " to %" PRIu64, text, min, max);
	return value;
}

static enum group_by group_by(const char *text)
{
	for (size_t i = 1; i < N_GROUP_NAMES; i++)
		if (!strcmp(text, group_names[i]))
			return i;
	fail(EXIT_USAGE, "see nsight-histograms --help", "--group-by %s is not known", text);
}

static void peer_of(char *text, struct arguments *args)
{
	char *slash = strchr(text, '/');
	uint64_t bits, most;

	if (slash)
		*slash = 0;
	memset(args->peer, 0, sizeof(args->peer));
	if (inet_pton(AF_INET, text, args->peer + 12) == 1) {
		args->peer[10] = args->peer[11] = 0xff;
		most = 32;
	} else if (inet_pton(AF_INET6, text, args->peer) == 1) {
		most = 128;
	} else {
		fail(EXIT_USAGE, "such as 192.0.2.0/24 or 2001:db8::/32", "--peer %s: no address",
		     text);
	}
	bits = 128 - most + (slash ? number(slash + 1, 1, most) : most);
	for (unsigned int i = 0; i < 16; i++) {
		unsigned int here = bits < 8 * i ? 0 : bits - 8 * i;

		args->peer_mask[i] = here >= 8 ? 0xff : 0xff00 >> here;
		args->peer[i] &= args->peer_mask[i];
	}
}

static int stage_of(const char *word)
{
	static const char *const names[] = {
#define X(id, name, ...) [STAGE_##id] = name,
		STAGES(X)
#undef X
	};
	int stage = 0;

	while (stage < N_STAGES && strcmp(word, names[stage]))
		stage++;
	if (stage == N_STAGES)
		fail(EXIT_USAGE, "--list-stages has the names", "there is no stage %s", word);
	return stage;
}

static void trigger_of(char *text, struct arguments *args)
{
	char *equals = strchr(text, '=');

	if (!equals)
		fail(EXIT_USAGE, "such as handoff-to-read=10000000", "--trigger %s: no latency",
		     text);
	*equals = 0;
	args->trigger_ns[stage_of(text)] = number(equals + 1, 1, UINT64_MAX);
	args->triggers = true;
}

static uint32_t stages_of(char *text)
{
	uint32_t mask = 0;

	for (char *word = strtok(text, ","); word; word = strtok(NULL, ","))
		mask |= 1u << stage_of(word);
	if (!mask)
		fail(EXIT_USAGE, "--list-stages has the names", "--stages names none");
	return mask;
}

void arguments_parse(int argc, char **argv, struct arguments *args)
{
	/* clang-format off */
	static const struct option options[] = {
		{"peer", 1, NULL, 'a'},
		{"port", 1, NULL, 'p'},
		{"pid", 1, NULL, 'P'},
		{"comm", 1, NULL, 'm'},
		{"cgroup", 1, NULL, 'c'},
		{"ifindex", 1, NULL, 'i'},
		{"netns", 1, NULL, 'n'},
		{"netns-cookie", 1, NULL, 'k'},
		{"queue", 1, NULL, 'q'},
		{"group-by", 1, NULL, 'g'},
		{"groups", 1, NULL, 'G'},
		{"group-idle-ms", 1, NULL, 'e'},
		{"interval-ms", 1, NULL, 'I'},
		{"duration-ms", 1, NULL, 'd'},
		{"stages", 1, NULL, 's'},
		{"receive-stamps", 0, NULL, 'r'},
		{"trigger", 1, NULL, 't'},
		{"trigger-pause-ms", 1, NULL, 'T'},
		{"no-probes", 0, NULL, 'N'},
		{"cost", 0, NULL, 'C'},
		{"follow", 0, NULL, 'f'},
		{"list-stages", 0, NULL, 'l'},
		{"help", 0, NULL, 'h'},
		{0},
	};
	/* clang-format on */
	int o;

	*args = (struct arguments){.interval_ms = 10000,
				   .n_groups = 64,
				   .group_idle_ms = 600000,
				   .trigger_pause_ms = 100};
	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (o) {
		case 'p':
			args->port = number(optarg, 1, 65535);
			break;
		case 'a':
			peer_of(optarg, args);
			break;
		case 'P':
			args->pid = number(optarg, 1, INT32_MAX);
			break;
		case 'm':
			if (!*optarg || strlen(optarg) > 15)
				fail(EXIT_USAGE, "ps -o comm shows the names of processes",
				     "--comm %s: the kernel's names have 1 to 15 bytes", optarg);
			args->comm = optarg;
			break;
		case 'c':
			args->cgroup = number(optarg, 1, UINT64_MAX);
			break;
		case 'i':
			args->ifindex = number(optarg, 1, INT32_MAX);
			break;
		case 'n':
			args->netns = number(optarg, 1, UINT32_MAX);
			break;
		case 'k':
			args->netns_cookie = number(optarg, 1, UINT64_MAX);
			break;
		case 'q':
			args->queue = number(optarg, 1, UINT32_MAX);
			break;
		case 'g':
			args->group_by = group_by(optarg);
			break;
		case 'G':
			args->n_groups = number(optarg, 1, MOST_GROUPS);
			break;
		case 'e':
			args->group_idle_ms = number(optarg, 1, UINT32_MAX);
			break;
		case 'I':
			args->interval_ms = number(optarg, 10, DAY_MS);
			break;
		case 'd':
			args->duration_ms = number(optarg, 1, UINT32_MAX);
			break;
		case 's':
			args->stages = stages_of(optarg);
			break;
		case 'r':
			args->receive_stamps = true;
			break;
		case 't':
			trigger_of(optarg, args);
			break;
		case 'T':
			args->trigger_pause_ms = number(optarg, 0, DAY_MS);
			break;
		case 'N':
			args->no_probes = true;
			break;
		case 'C':
			args->cost = true;
			break;
		case 'f':
			args->follow = true;
			break;
		case 'l':
			args->list = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(EXIT_USAGE);
		}
	}
	if (optind < argc) {
		fputs(usage, stderr);
		exit(EXIT_USAGE);
	}
	args->n_groups = args->group_by ? args->n_groups + GROUP_FIRST : 1;
}
