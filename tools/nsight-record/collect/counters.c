// SPDX-License-Identifier: GPL-2.0-only
#include "counters.h"

#include "../../bpf/record.h"
#include "../../bpf/flight_triggers.h"
#include "nsight-collect.skel.h"
#include "output.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE(cache, op, result)                                                                   \
	(PERF_COUNT_HW_CACHE_##cache | PERF_COUNT_HW_CACHE_OP_##op << 8 |                          \
	 PERF_COUNT_HW_CACHE_RESULT_##result << 16)

static const struct known {
	const char *name;
	__u32 type;
	__u64 config;
} known[] = {
	{"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
	{"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
	{"stalled-cycles-frontend", PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_FRONTEND},
	{"stalled-cycles-backend", PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_BACKEND},
	{"branch-misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_BRANCH_MISSES},
	{"cache-misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
	{"LLC-load-misses", PERF_TYPE_HW_CACHE, CACHE(LL, READ, MISS)},
	{"dTLB-load-misses", PERF_TYPE_HW_CACHE, CACHE(DTLB, READ, MISS)},
	{"page-faults", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS},
	{"cpu-clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK},
};

static const struct known *chosen[NSR_COUNTERS_AT_ONCE];
static int n_chosen;

void counters_add(const char *name)
{
	if (n_chosen == NSR_COUNTERS_AT_ONCE)
		fail(EXIT_USAGE, "leave one out", "more than %d counters", NSR_COUNTERS_AT_ONCE);
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (strcmp(known[i].name, name))
			continue;
		chosen[n_chosen++] = &known[i];
		return;
	}
	fail(EXIT_USAGE, "see nsight-record --help", "there is no counter %s", name);
}

void counters_choose(struct nsight_collect_bpf *skel)
{
	skel->rodata->n_counters = n_chosen;
}

/* Opens a counter on one core; -1: see errno. Pinned: it counts all the time, or not at all. */
static int open_one(const struct known *counter, int cpu)
{
	struct perf_event_attr attr = {
		.type = counter->type,
		.size = sizeof(attr),
		.config = counter->config,
		.pinned = 1,
	};
	int fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	__u64 value;

	if (fd < 0 || read(fd, &value, sizeof(value)) == sizeof(value))
		return fd;
	close(fd);
	errno = EBUSY; /* the core has no counter left for it */
	return -1;
}

/* The number of cores on which it was opened; *n_failed: on which it was not, see errno. The
 * descriptors stay open: closing them would end the events. */
static int open_all(const struct known *counter, int map, int n_cpus, int *n_failed)
{
	int n = 0, reason = ENODEV;

	*n_failed = 0;
	for (int cpu = 0; cpu < n_cpus; cpu++) {
		int fd = open_one(counter, cpu);

		if (fd >= 0 && !bpf_map_update_elem(map, &cpu, &fd, BPF_ANY))
			n++;
		else if (errno != ENODEV) { /* the core is offline */
			reason = errno;
			++*n_failed;
		}
	}
	errno = reason;
	return n;
}

void counters_open(struct nsight_collect_bpf *skel, int n_cpus)
{
	const struct bpf_map *maps[NSR_COUNTERS_AT_ONCE] = {
		skel->maps.counter0, skel->maps.counter1, skel->maps.counter2,
		skel->maps.counter3, skel->maps.counter4,
	};

	for (int i = 0; i < n_chosen; i++) {
		int n_failed, n = open_all(chosen[i], bpf_map__fd(maps[i]), n_cpus, &n_failed);

		if (n)
			printf("counter %d %s\n", i, chosen[i]->name);
		if (n && n_failed)
			printf("no counter %s: on %d of %d cores: %s\n", chosen[i]->name, n_failed,
			       n + n_failed, strerror(errno));
		else if (!n)
			printf("no counter %s: %s\n", chosen[i]->name, strerror(errno));
	}
}
