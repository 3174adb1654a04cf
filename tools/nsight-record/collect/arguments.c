// SPDX-License-Identifier: GPL-2.0-only
#include "arguments.h"

#include "counters.h"
#include "intervals.h"
#include "output.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
	"usage: nsight-collect [OPTION...] DIR\n"
	"\n"
	"Record where messages are and what the cores do, until SIGTERM or SIGINT, into the new "
	"directory DIR.\n"
	"\n"
	"      --port N --pid N --cgroup ID --ifindex N --netns INODE\n"
	"                     only these messages (default: all)\n"
	"      --rx, --tx     only receive, only transmit\n"
	"      --messages     no activity of the cores\n"
	"      --all-syscalls system calls of all processes, not only of those that messages "
	"reach\n"
	"      --waits        only system calls in which threads wait\n"
	"      --no-syscalls  no system calls\n"
	"      --server       --port is a server's: leave out its clients on this machine\n"
	"      --hardware-timestamps\n"
	"                     look for hardware timestamps of received packets\n"
	"      --acknowledgements CGROUP\n"
	"                     record when the driver is done with TCP data and when\n"
	"                     peers acknowledge it (Linux 6.15)\n"
	"      --interval usdt:FILE:PROVIDER:MARK..MARK, --interval "
	"uprobe:FILE:FUNCTION..FUNCTION\n"
	"                     from one mark to another in one thread; can be repeated\n"
	"      --counter NAME read this performance counter at each context switch and mark; up "
	"to five times\n"
	"      --ring-kb N    memory of each core's ring, a power of two from 64 (default 8192)\n"
	"      --compress     compress the records with zstd\n"
	"      --check        only list the kernel features that are missing\n"
	"      --every-ms N   maximum time until the rings are emptied (default 10)\n"
	"\n"
	"Flight recorder: keep the newest records, and write them into a directory in DIR when a\n"
	"message was slow, packets were lost, or at SIGUSR1.\n"
	"      --flight\n"
	"      --before-ms N, --after-ms N\n"
	"                     time to write before and after that (default 1000, 200)\n"
	"      --latency-us N a message is slow if it was read this long after its arrival\n"
	"      --percentile P or slower than P per cent of its service's messages (99.9)\n"
	"      --drops N, --retransmissions N\n"
	"                     trigger at this number per second\n"
	"      --per-hour N   maximum number of windows (default 20)\n"
	"      --most-mb N    maximum size of all windows (default 2048)\n"
	"      --snapshot-pidfd N, --snapshot-mb N\n"
	"                     at each window send SIGUSR2 to this process (perf), which then\n"
	"                     writes its own part, at most N MiB\n"
	"      --most-cpu P   per cent of all cores for the BPF programs (default 0, no limit)\n"
	"      --pause-s N    if they take more, pause recording for this time (default 60)\n"
	"\n"
	"Prints \"recording\" when every program is attached, and counts as JSON at the end.\n"
	"Exit codes: 0 done, 1 the kernel refused, 2 usage, 5 DIR or the disk.\n";

#define MILLISECOND 1000000ull
#define MEBIBYTE    (1ull << 20)

static uint64_t number(const char *text, uint64_t max)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value > max)
		fail(EXIT_USAGE, "see nsight-collect --help",
		     "%s is not a number from 0 to %" PRIu64, text, max);
	return value;
}

static double per_cent(const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0 && value <= 100))
		fail(EXIT_USAGE, "see nsight-collect --help", "%s is not a number from 0 to 100",
		     text);
	return value;
}

void arguments_parse(int argc, char **argv, struct arguments *args)
{
	static const struct option options[] = {
		{"port", 1, NULL, 'p'},
		{"pid", 1, NULL, 'P'},
		{"cgroup", 1, NULL, 'c'},
		{"ifindex", 1, NULL, 'i'},
		{"netns", 1, NULL, 'n'},
		{"rx", 0, NULL, 'r'},
		{"tx", 0, NULL, 't'},
		{"messages", 0, NULL, 'm'},
		{"waits", 0, NULL, 'W'},
		{"no-syscalls", 0, NULL, 'N'},
		{"all-syscalls", 0, NULL, 's'},
		{"server", 0, NULL, 'S'},
		{"hardware-timestamps", 0, NULL, 'w'},
		{"acknowledgements", 1, NULL, 'A'},
		{"interval", 1, NULL, 'I'},
		{"counter", 1, NULL, 'O'},
		{"ring-kb", 1, NULL, 'k'},
		{"every-ms", 1, NULL, 'e'},
		{"check", 0, NULL, 'C'},
		{"compress", 0, NULL, 'z'},
		{"flight", 0, NULL, 'F'},
		{"before-ms", 1, NULL, 'b'},
		{"after-ms", 1, NULL, 'a'},
		{"latency-us", 1, NULL, 'l'},
		{"percentile", 1, NULL, 'q'},
		{"drops", 1, NULL, 'd'},
		{"retransmissions", 1, NULL, 'R'},
		{"per-hour", 1, NULL, 'H'},
		{"most-mb", 1, NULL, 'M'},
		{"most-cpu", 1, NULL, 'u'},
		{"pause-s", 1, NULL, 'Z'},
		{"snapshot-pidfd", 1, NULL, 'x'},
		{"snapshot-mb", 1, NULL, 'y'},
		{"help", 0, NULL, 'h'},
		{0},
	};
	int o;

	*args = (struct arguments){.ring_kb = 8192,
				   .every_ms = 10,
				   .activity = true,
				   .syscalls = true,
				   .flight = {.before_ns = 1000 * MILLISECOND,
					      .after_ns = 200 * MILLISECOND,
					      .pause_ns = 60 * 1000 * MILLISECOND,
					      .per_hour = 20,
					      .most_bytes = 2048 * MEBIBYTE}};
	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (o) {
		case 'p':
			args->port = number(optarg, 65535);
			break;
		case 'P':
			args->pid = number(optarg, INT32_MAX);
			break;
		case 'c':
			args->cgroup = number(optarg, UINT64_MAX);
			break;
		case 'i':
			args->ifindex = number(optarg, INT32_MAX);
			break;
		case 'n':
			args->netns = number(optarg, UINT32_MAX);
			break;
		case 'r':
			args->rx = true;
			break;
		case 't':
			args->tx = true;
			break;
		case 'm':
			args->activity = false;
			break;
		case 's':
			args->all_syscalls = true;
			break;
		case 'C':
			args->check = true;
			break;
		case 'z':
			args->compress = true;
			break;
		case 'W':
			args->waits = true;
			break;
		case 'N':
			args->syscalls = false;
			break;
		case 'S':
			args->of_server = true;
			break;
		case 'w':
			args->hardware_stamps = true;
			break;
		case 'A':
			args->acknowledgements = optarg;
			break;
		case 'I':
			intervals_add(optarg);
			break;
		case 'O':
			counters_add(optarg);
			break;
		case 'k':
			args->ring_kb = number(optarg, 1u << 20);
			break;
		case 'e':
			args->every_ms = number(optarg, 1000);
			break;
		case 'F':
			args->flight.on = true;
			break;
		case 'b':
			args->flight.before_ns = number(optarg, 600000) * MILLISECOND;
			break;
		case 'a':
			args->flight.after_ns = number(optarg, 60000) * MILLISECOND;
			break;
		case 'l':
			args->flight.latency_ns = number(optarg, 1000000000) * 1000;
			break;
		case 'q':
			args->flight.percentile = per_cent(optarg);
			break;
		case 'd':
			args->flight.drops = number(optarg, UINT32_MAX);
			break;
		case 'R':
			args->flight.retransmits = number(optarg, UINT32_MAX);
			break;
		case 'H':
			args->flight.per_hour = number(optarg, 3600);
			break;
		case 'M':
			args->flight.most_bytes = number(optarg, 1u << 30) * MEBIBYTE;
			break;
		case 'u':
			args->flight.most_cpu = per_cent(optarg);
			break;
		case 'Z':
			args->flight.pause_ns = number(optarg, 60) * 1000 * MILLISECOND;
			break;
		case 'x':
			args->flight.snapshot_pidfd = number(optarg, INT32_MAX);
			break;
		case 'y':
			args->flight.snapshot_bytes = number(optarg, 1u << 30) * MEBIBYTE;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(EXIT_USAGE);
		}
	}
	if (argc - optind != !args->check || args->ring_kb < 64 ||
	    args->ring_kb & (args->ring_kb - 1) || !args->every_ms) {
		fputs(usage, stderr);
		exit(EXIT_USAGE);
	}
	if (!args->rx && !args->tx)
		args->rx = args->tx = true;
	args->dir = argv[optind];
}
