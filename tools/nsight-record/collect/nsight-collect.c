// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-collect: loads the programs that write records into the rings of the cores, and copies new
 * records into one file for each core. nsight-record runs it; it can also be run by hand.
 */
#include "../../bpf/record.h"
#include "acknowledgements.h"
#include "arguments.h"
#include "counters.h"
#include "flight.h"
#include "intervals.h"
#include "nsight-collect.skel.h"
#include "output.h"
#include "programs.h"
#include "rings.h"
#include "threads.h"
#include "tracepoints.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND  1000000ull
#define SECOND	     (1000 * MILLISECOND)
#define MOST_AT_ONCE (128u << 10) /* bytes of records: takes some 40 us */

static volatile sig_atomic_t asked_to_stop, asked_for_window;
static struct nsight_collect_bpf *loaded;

static void on_signal(int sig)
{
	if (sig == SIGUSR1)
		asked_for_window++;
	else
		asked_to_stop = 1;
}

static int no_print(enum libbpf_print_level level, const char *format, va_list list)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, list) : 0;
}

static struct nsight_collect_bpf *load(const struct arguments *args, int n_cpus)
{
	struct nsight_collect_bpf *skel = nsight_collect_bpf__open();
	uint64_t units = args->ring_kb * 1024 / NSR_UNIT, n_chunks;
	struct btf *kernel = kernel_types();

	if (!skel)
		fail(EXIT_REFUSED, "see the message above", "the BPF programs: %s",
		     strerror(errno));
	skel->rodata->ring_mask = units - 1;
	skel->rodata->ring_shift = __builtin_ctzll(units);
	n_chunks = units / NSR_PAGE_UNITS < NSR_CHUNKS ? units / NSR_PAGE_UNITS : NSR_CHUNKS;
	skel->rodata->chunk_shift = __builtin_ctzll(units / n_chunks);
	skel->rodata->chunks_mask = n_chunks - 1;
	skel->rodata->only_port = args->port;
	skel->rodata->only_pid = args->pid;
	skel->rodata->only_ifindex = args->ifindex;
	skel->rodata->only_netns = args->netns;
	skel->rodata->only_cgroup = args->cgroup;
	skel->rodata->rx = args->rx;
	skel->rodata->tx = args->tx;
	skel->rodata->all_syscalls = args->all_syscalls;
	skel->rodata->only_waits = args->waits;
	skel->rodata->of_server = args->of_server && args->port;
	skel->rodata->hardware_stamps = args->hardware_stamps;
	skel->rodata->overwrite = args->flight.on;
	skel->rodata->watch_latency =
		args->flight.on && (args->flight.latency_ns || args->flight.percentile);
	skel->rodata->latency_limit = args->flight.latency_ns;
	skel->rodata->by_service = args->flight.percentile > 0;
	skel->bss->stopped = true; /* until every program is attached */
	bpf_map__set_max_entries(skel->maps.controls, n_cpus);
	bpf_map__set_max_entries(skel->maps.rings, n_cpus);
	/* No record crosses a page, but the verifier knows only where a record begins. */
	bpf_map__set_value_size(skel->maps.rings, units * NSR_UNIT + NSR_MAX_UNITS * NSR_UNIT);
	tracepoints_choose(kernel, skel->obj, args->activity, args->syscalls && !args->waits,
			   args->rx, args->tx);
	intervals_choose(skel);
	counters_choose(skel);
	acknowledgements_choose(kernel, skel, args->acknowledgements);
	btf__free(kernel);
	if (args->check)
		return skel;
	if (nsight_collect_bpf__load(skel))
		fail(EXIT_REFUSED, "nsight-record --preflight says what is missing",
		     "the kernel refused the BPF programs: %s", strerror(errno));
	counters_open(skel, n_cpus);
	if (nsight_collect_bpf__attach(skel))
		fail(EXIT_REFUSED, "nsight-record --preflight says what is missing",
		     "a BPF program cannot be attached: %s", strerror(errno));
	intervals_attach(skel);
	acknowledgements_attach(skel, args->acknowledgements);
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

/* Counts of the machine's file, which has no ring. */
static const struct nsr_control *machine_control(const struct output *machine)
{
	static struct nsr_control control;

	for (uint32_t type = 0; type < NSR_N_TYPES; type++)
		control.produced[type] = machine->written[type];
	return &control;
}

static bool leave_syscalls(void)
{
	if (!loaded->links.on_sys_enter)
		return false;
	loaded->bss->syscalls_left = true;
	bpf_link__destroy(loaded->links.on_sys_enter);
	bpf_link__destroy(loaded->links.on_sys_exit);
	loaded->links.on_sys_enter = loaded->links.on_sys_exit = NULL;
	return true;
}

static struct rings map_rings(struct nsight_collect_bpf *skel, int n)
{
	struct rings rings = {.of = calloc(n, sizeof(struct ring)),
			      .n = n,
			      .mask = skel->rodata->ring_mask,
			      .shift = skel->rodata->ring_shift,
			      .chunk_shift = skel->rodata->chunk_shift,
			      .n_chunks = skel->rodata->chunks_mask + 1};
	size_t control_stride, ring_stride;
	unsigned char *controls, *data;

	if (!rings.of)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	controls = map_memory(skel->maps.controls, n, &control_stride);
	data = map_memory(skel->maps.rings, n, &ring_stride);
	for (int i = 0; i < n; i++) {
		rings.of[i].control = (struct nsr_control *)(controls + i * control_stride);
		rings.of[i].data = data + i * ring_stride;
		for (uint32_t chunk = 0; chunk < rings.n_chunks; chunk++)
			rings.of[i].control->free[chunk / 64] |= 1ull << chunk % 64;
	}
	return rings;
}

/*
 * The time until the rings are emptied again: the more data came, the shorter. Threads on the same
 * core wait while they are emptied; that time would show up in a server's slowest requests.
 */
static uint64_t next_pause(uint64_t pause, uint64_t bytes, uint64_t longest)
{
	if (bytes > MOST_AT_ONCE)
		pause = pause * MOST_AT_ONCE / bytes;
	else if (bytes < MOST_AT_ONCE / 2)
		pause *= 2;
	if (pause < MILLISECOND)
		pause = MILLISECOND;
	return pause < longest ? pause : longest;
}

/* Every record, until the end. */
static void record_all(struct rings *rings, struct nsight_collect_bpf *skel,
		       const struct arguments *args)
{
	uint64_t longest = args->every_ms * MILLISECOND, pause = longest, now, looked, counted;
	static struct steal steal;
	struct output machine;

	for (int i = 0; i < rings->n; i++)
		rings->of[i].output = output_open(i);
	machine = *output_open(NSR_NO_CPU);
	skel->bss->stopped = false;
	/* Only after the programs are attached: they report threads that start in the meantime. */
	threads_were_there(&machine, monotonic_ns());
	steal_begin(&steal);
	puts("recording");
	fflush(stdout);
	looked = counted = monotonic_ns();
	while (!asked_to_stop) {
		nanosleep(&(struct timespec){pause / SECOND, pause % SECOND}, NULL);
		pause = next_pause(pause, rings_drain(rings), longest);
		now = monotonic_ns();
		if (args->activity && now - looked >= 100 * MILLISECOND) {
			steal_look(&steal, &machine, now);
			looked = now;
		}
		if (now - counted >= SECOND) {
			for (int i = 0; i < rings->n; i++)
				output_counts(rings->of[i].output, rings->of[i].control, NSR_COUNTS,
					      now);
			counted = now;
		}
	}
	skel->bss->stopped = true;
	rings_drain_rest(rings);
	if (args->activity)
		steal_look(&steal, &machine, monotonic_ns());
	for (int i = 0; i < rings->n; i++) {
		output_counts(rings->of[i].output, rings->of[i].control, NSR_END, monotonic_ns());
		output_close(rings->of[i].output);
	}
	output_counts(&machine, machine_control(&machine), NSR_END, monotonic_ns());
	output_close(&machine);
	programs_print_missed(skel->obj);
	if (*output_unreserved())
		printf("unreserved: %s\n", output_unreserved());
	intervals_print(rings);
	puts("{");
	for (int i = 0; i < rings->n; i++)
		output_summary(rings->of[i].output, rings->of[i].control, i + 1 < rings->n);
	puts("}");
}

/* Only records around a trigger. */
static void record_windows(struct rings *rings, struct nsight_collect_bpf *skel,
			   const struct arguments *args)
{
	size_t stride;
	const struct flight_shared shared = {
		.triggers = skel->bss->flight_triggers,
		.n_triggers = (const uint64_t *)&skel->bss->n_flight_triggers,
		.services = map_memory(skel->maps.services, FLIGHT_SERVICES, &stride),
		.n_no_service = (const uint64_t *)&skel->bss->n_no_service,
		.stopped = &skel->bss->stopped,
		.watched_from = (volatile uint64_t *)&skel->bss->watched_from,
		.object = skel->obj,
		.leave_syscalls = leave_syscalls,
	};

	skel->bss->stopped = false;
	puts("recording");
	fflush(stdout);
	flight_run(rings, &args->flight, &shared, args->activity, args->every_ms, &asked_to_stop,
		   &asked_for_window);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	int n = libbpf_num_possible_cpus();
	struct arguments args;
	struct rings rings;

	arguments_parse(argc, argv, &args);
	libbpf_set_print(no_print);
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	if (n < 1)
		fail(EXIT_REFUSED, "mount /sys", "the number of cores is unknown");
	if (!args.check)
		output_directory(args.dir);
	if (args.compress)
		output_compress();
	loaded = load(&args, n);
	if (args.check)
		return 0;
	rings = map_rings(loaded, n);
	prctl(PR_SET_TIMERSLACK, 1000000);
	if (args.flight.on)
		record_windows(&rings, loaded, &args);
	else
		record_all(&rings, loaded, &args);
	acknowledgements_end(loaded, args.acknowledgements);
	/* The kernel removes the programs after the process has ended; nothing waits for that. */
	return output_failed() ? EXIT_OUTPUT : 0;
}
