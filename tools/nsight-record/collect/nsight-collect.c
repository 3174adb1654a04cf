// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-collect: loads the programs that write records into the rings of the cores, and copies
 * what is new into one file for each core. nsight-record runs it; by hand it serves too.
 */
#include "../../bpf/record.h"
#include "nsight-collect.skel.h"
#include "output.h"
#include "threads.h"
#include "tracepoints.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
	"usage: nsight-collect [OPTION...] DIR\n"
	"\n"
	"Record where messages are and what the cores do, until SIGTERM or SIGINT, into the new "
	"folder DIR.\n"
	"\n"
	"      --port N --pid N --cgroup ID --ifindex N --netns INODE\n"
	"                     only these messages (default: all)\n"
	"      --rx, --tx     only receive, only transmit\n"
	"      --messages     no activity of the cores\n"
	"      --all-syscalls system calls of all processes, not only of those that messages "
	"reach\n"
	"      --no-syscalls  no system calls\n"
	"      --server       --port is a server's: no system calls of its clients on this "
	"machine\n"
	"      --hardware-stamps\n"
	"                     look for hardware stamps of received packets\n"
	"      --ring-kb N    memory of each core's ring, a power of two from 64 (default 8192)\n"
	"      --check        only say what of this kernel is missing\n"
	"      --every-ms N   how often rings are emptied (default 10)\n"
	"\n"
	"Prints \"recording\" when every program is attached, and counts as JSON at the end.\n"
	"Exit codes: 0 done, 1 the kernel refused, 2 usage, 5 DIR or the disk.\n";

struct arguments {
	const char *dir;
	uint64_t port, pid, cgroup, ifindex, netns, ring_kb, every_ms;
	bool check, rx, tx, activity, syscalls, all_syscalls, of_server, hardware_stamps;
};

struct ring {
	struct nsr_control *control;
	unsigned char *data;
	struct output *output;
};

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int sig)
{
	(void)sig;
	asked_to_stop = 1;
}

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

static void parse(int argc, char **argv, struct arguments *args)
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
		{"no-syscalls", 0, NULL, 'N'},
		{"all-syscalls", 0, NULL, 's'},
		{"server", 0, NULL, 'S'},
		{"hardware-stamps", 0, NULL, 'w'},
		{"ring-kb", 1, NULL, 'k'},
		{"every-ms", 1, NULL, 'e'},
		{"check", 0, NULL, 'C'},
		{"help", 0, NULL, 'h'},
		{0},
	};
	int o;

	*args = (struct arguments){
		.ring_kb = 8192, .every_ms = 10, .activity = true, .syscalls = true};
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
		case 'N':
			args->syscalls = false;
			break;
		case 'S':
			args->of_server = true;
			break;
		case 'w':
			args->hardware_stamps = true;
			break;
		case 'k':
			args->ring_kb = number(optarg, 1u << 20);
			break;
		case 'e':
			args->every_ms = number(optarg, 1000);
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

static int no_print(enum libbpf_print_level level, const char *format, va_list list)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, list) : 0;
}

static struct nsight_collect_bpf *load(const struct arguments *args, int n_cpus)
{
	struct nsight_collect_bpf *skel = nsight_collect_bpf__open();
	uint64_t units = args->ring_kb * 1024 / NSR_UNIT;

	if (!skel)
		fail(EXIT_REFUSED, "see the message above", "the BPF programs: %s",
		     strerror(errno));
	skel->rodata->ring_mask = units - 1;
	skel->rodata->ring_shift = __builtin_ctzll(units);
	skel->rodata->only_port = args->port;
	skel->rodata->only_pid = args->pid;
	skel->rodata->only_ifindex = args->ifindex;
	skel->rodata->only_netns = args->netns;
	skel->rodata->only_cgroup = args->cgroup;
	skel->rodata->rx = args->rx;
	skel->rodata->tx = args->tx;
	skel->rodata->all_syscalls = args->all_syscalls;
	skel->rodata->of_server = args->of_server && args->port;
	skel->rodata->hardware_stamps = args->hardware_stamps;
	skel->bss->stopped = true; /* until every program is attached */
	bpf_map__set_max_entries(skel->maps.controls, n_cpus);
	bpf_map__set_max_entries(skel->maps.rings, n_cpus);
	/* No record crosses a page, but the verifier sees only where it begins. */
	bpf_map__set_value_size(skel->maps.rings, units * NSR_UNIT + NSR_MAX_UNITS * NSR_UNIT);
	tracepoints_choose(skel->obj, args->activity, args->syscalls, args->rx, args->tx);
	if (args->check)
		return skel;
	if (nsight_collect_bpf__load(skel))
		fail(EXIT_REFUSED, "nsight-record --preflight says what is missing",
		     "the kernel refused the BPF programs: %s", strerror(errno));
	if (nsight_collect_bpf__attach(skel))
		fail(EXIT_REFUSED, "nsight-record --preflight says what is missing",
		     "a BPF program cannot be attached: %s", strerror(errno));
	return skel;
}

static void *map_memory(struct bpf_map *map, int n, size_t *stride)
{
	size_t page = sysconf(_SC_PAGESIZE), bytes;
	void *memory;

	*stride = (bpf_map__value_size(map) + 7) & ~(size_t)7;
	bytes = (*stride * n + page - 1) & ~(page - 1);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);
	if (memory == MAP_FAILED)
		fail(EXIT_REFUSED, "free some memory", "the rings cannot be mapped: %s",
		     strerror(errno));
	return memory;
}

static uint64_t monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/*
 * Units from ``from`` that are complete, at most up to ``to`` and the end of the ring's memory.
 * What the reader has done with is 0, so a first word that is there is that of a complete record.
 */
static uint64_t complete(const struct ring *ring, uint64_t mask, uint64_t from, uint64_t to,
			 uint64_t *found)
{
	uint64_t at = from;

	while (at < to && (at == from || at & mask)) {
		const uint64_t *unit = (const uint64_t *)(ring->data + (at & mask) * NSR_UNIT);
		uint64_t word = __atomic_load_n(unit, __ATOMIC_ACQUIRE);
		uint32_t type = word & 0xff,
			 units = type == NSR_PAD ? (uint32_t)unit[1] : nsr_units(type);

		if (!word || !units || at + units - from > NSR_MAX_BLOCK / NSR_UNIT)
			break;
		found[type]++;
		at += units;
	}
	return at - from;
}

/* Copy what is new. */
static void drain(struct ring *ring, uint64_t mask)
{
	uint64_t head = __atomic_load_n(&ring->control->head, __ATOMIC_ACQUIRE),
		 now = monotonic_ns(), tail = ring->control->tail, units;

	for (;;) {
		uint64_t found[256] = {0}; /* records by type */
		unsigned char *first = ring->data + (tail & mask) * NSR_UNIT;

		units = complete(ring, mask, tail, head, found);
		if (!units)
			return;
		if (output_block(ring->output, NSR_RECORDS, first, units * NSR_UNIT, now, tail))
			for (int type = 0; type < NSR_N_TYPES; type++)
				ring->output->written[type] += found[type];
		memset(first, 0, units * NSR_UNIT);
		tail += units;
		__atomic_store_n(&ring->control->tail, tail, __ATOMIC_RELEASE);
	}
}

static void drain_all(struct ring *rings, int n, uint64_t mask)
{
	for (int i = 0; i < n; i++)
		drain(&rings[i], mask);
}

/* What a program that was interrupted has reserved and not yet written comes within moments. */
static void drain_rest(struct ring *rings, int n, uint64_t mask)
{
	for (int tries = 0; tries < 100; tries++) {
		bool left = false;

		drain_all(rings, n, mask);
		for (int i = 0; i < n; i++)
			left |= rings[i].control->tail !=
				__atomic_load_n(&rings[i].control->head, __ATOMIC_ACQUIRE);
		if (!left && tries)
			return;
		usleep(1000);
	}
}

/* Counts of the machine's file, which has no ring. */
static const struct nsr_control *machine_control(const struct output *machine)
{
	static struct nsr_control control;

	for (uint32_t type = 0; type < NSR_N_TYPES; type++)
		control.produced[type] = machine->written[type];
	return &control;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	int n = libbpf_num_possible_cpus();
	struct nsight_collect_bpf *skel;
	struct output machine;
	size_t control_stride, ring_stride;
	unsigned char *controls, *data;
	struct arguments args;
	struct ring *rings;
	struct steal steal;
	uint64_t mask;

	parse(argc, argv, &args);
	libbpf_set_print(no_print);
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	if (n < 1)
		fail(EXIT_REFUSED, "mount /sys", "the number of cores is unknown");
	rings = calloc(n, sizeof(*rings));
	if (!rings)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	if (!args.check)
		output_folder(args.dir);
	skel = load(&args, n);
	if (args.check)
		return 0;
	mask = skel->rodata->ring_mask;
	controls = map_memory(skel->maps.controls, n, &control_stride);
	data = map_memory(skel->maps.rings, n, &ring_stride);
	for (int i = 0; i < n; i++) {
		rings[i].control = (struct nsr_control *)(controls + i * control_stride);
		rings[i].data = data + i * ring_stride;
		rings[i].output = output_open(i);
	}
	machine = *output_open(NSR_NO_CPU);
	prctl(PR_SET_TIMERSLACK, 1000000);
	skel->bss->stopped = false;
	/* After the programs are at work: who begins meanwhile is told by them. */
	if (args.activity)
		threads_were_there(&machine, monotonic_ns());
	steal_begin(&steal);
	puts("recording");
	fflush(stdout);

	for (uint64_t turn = 0, per_second = (999 + args.every_ms) / args.every_ms; !asked_to_stop;
	     turn++) {
		struct timespec pause = {args.every_ms / 1000, args.every_ms % 1000 * 1000000};

		nanosleep(&pause, NULL);
		drain_all(rings, n, mask);
		if (args.activity && turn % 10 == 9)
			steal_look(&steal, &machine, monotonic_ns());
		if (turn % per_second == per_second - 1)
			for (int i = 0; i < n; i++)
				output_counts(rings[i].output, rings[i].control, NSR_COUNTS,
					      monotonic_ns());
	}
	skel->bss->stopped = true;
	drain_rest(rings, n, mask);
	if (args.activity)
		steal_look(&steal, &machine, monotonic_ns());
	for (int i = 0; i < n; i++) {
		output_counts(rings[i].output, rings[i].control, NSR_END, monotonic_ns());
		output_close(rings[i].output);
	}
	output_counts(&machine, machine_control(&machine), NSR_END, monotonic_ns());
	output_close(&machine);
	puts("{");
	for (int i = 0; i < n; i++)
		output_summary(rings[i].output, rings[i].control, i + 1 < n);
	puts("}");
	/* The kernel takes the programs down when the process has gone: nobody need wait for it. */
	return output_failed() ? EXIT_OUTPUT : 0;
}
