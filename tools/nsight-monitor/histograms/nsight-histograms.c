// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-histograms: loads the programs that count latencies in the kernel, and prints the sums of
 * all cores as JSON lines. nsight-monitor runs it; it can also be run by hand.
 */
#include "arguments.h"
#include "clocks.h"
#include "followed.h"
#include "host.h"
#include "nsight-histograms.skel.h"
#include "snapshot.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND 1000000ull

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int sig)
{
	(void)sig;
	asked_to_stop = 1;
}

static int no_print(enum libbpf_print_level level, const char *format, va_list list)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, list) : 0;
}

static const char hint[] = "run it as root; --list-stages says what this kernel has";

static struct nsight_histograms_bpf *load(const struct arguments *args, const struct host *host,
					  uint32_t stages, int n_cores)
{
	struct nsight_histograms_bpf *skel = nsight_histograms_bpf__open();

	if (!skel)
		fail(EXIT_REFUSED, hint, "the BPF programs: %s", strerror(errno));
	skel->rodata->stages = stages;
	skel->rodata->has_cast = host->has_cast;
	skel->rodata->group_by = args->group_by;
	skel->rodata->n_groups = args->n_groups;
	skel->rodata->only_port = args->port;
	skel->rodata->only_pid = args->pid;
	skel->rodata->only_queue = args->queue;
	skel->rodata->only_process = args->pid || args->comm;
	skel->rodata->filtered = args->port || args->pid || args->comm || args->ifindex ||
				 args->netns || args->queue || args->cgroup ||
				 memcmp(args->peer_mask, (uint8_t[16]){}, sizeof(args->peer_mask));
	memcpy((void *)skel->rodata->only_peer, args->peer, sizeof(args->peer));
	memcpy((void *)skel->rodata->peer_mask, args->peer_mask, sizeof(args->peer_mask));
	memcpy((void *)skel->rodata->trigger_ns, args->trigger_ns, sizeof(args->trigger_ns));
	skel->rodata->trigger_pause_ns = args->trigger_pause_ms * MILLISECOND;
	if (args->comm)
		strncpy((char *)skel->rodata->only_comm, args->comm, 15);
	skel->bss->only_ifindex = args->ifindex;
	skel->bss->only_netns = args->netns;
	skel->bss->only_netns_cookie = args->netns_cookie;
	skel->bss->only_cgroup = args->cgroup;
	skel->bss->realtime_offset = clock_realtime_offset();
	if (args->group_by)
		bpf_map__set_max_entries(skel->maps.histograms, n_cores * args->n_groups);
	bpf_map__set_max_entries(skel->maps.cores, n_cores);
	bpf_map__set_max_entries(skel->maps.groups, args->n_groups);
	bpf_map__set_max_entries(skel->maps.free_places, args->n_groups);
	host_choose_programs(host, skel->obj, stages);
	if (nsight_histograms_bpf__load(skel))
		fail(EXIT_REFUSED, hint, "the kernel refused the BPF programs: %s",
		     strerror(errno));
	return skel;
}

static void *map_memory(struct bpf_map *map, size_t *stride)
{
	size_t page = sysconf(_SC_PAGESIZE), bytes;
	void *memory;

	*stride = (bpf_map__value_size(map) + 7) & ~(size_t)7;
	bytes = (*stride * bpf_map__max_entries(map) + page - 1) & ~(page - 1);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);
	if (memory == MAP_FAILED)
		fail(EXIT_REFUSED, "free some memory, or take fewer --groups",
		     "the histograms cannot be mapped: %s", strerror(errno));
	return memory;
}

static struct snapshot attach(const struct arguments *args, const struct host *host,
			      struct nsight_histograms_bpf *skel, int n_cores)
{
	struct bpf_program *receive = skel->progs.on_netif_receive_skb,
			   *ingress = skel->progs.on_socket_ingress;
	struct snapshot s = {.group_by = args->group_by, .object = skel->obj, .cost = args->cost};
	size_t stride;

	s.cores = map_memory(skel->maps.cores, &s.core_stride);
	s.seen = calloc(args->n_groups, sizeof(*s.seen));
	if (!s.seen)
		fail(EXIT_REFUSED, "take fewer --groups", "no memory for the groups");
	s.groups = (struct groups){
		.n = args->n_groups,
		.n_cores = n_cores,
		.map = bpf_map__fd(skel->maps.groups),
		.free_places = bpf_map__fd(skel->maps.free_places),
		.idle_ns = args->group_idle_ms * MILLISECOND,
		.epoch = &skel->bss->group_epoch,
		.n_ended = &((struct core *)s.cores)->counts[COUNT_GROUP_ENDED],
	};
	if (args->group_by) {
		s.groups.histograms = map_memory(skel->maps.histograms, &stride);
		s.groups.of_core = stride * args->n_groups;
	} else {
		s.groups.histograms = s.cores + offsetof(struct core, ungrouped);
		s.groups.of_core = s.core_stride;
	}
	groups_begin(&s.groups);
	/* First, since the others look up the arrivals that this program enters. */
	if (bpf_program__fd(receive) >= 0)
		skel->links.on_netif_receive_skb = bpf_program__attach(receive);
	if (bpf_program__fd(ingress) >= 0)
		skel->links.on_socket_ingress = bpf_program__attach_cgroup(ingress, host->cgroup);
	if ((bpf_program__fd(receive) >= 0 && !skel->links.on_netif_receive_skb) ||
	    (bpf_program__fd(ingress) >= 0 && !skel->links.on_socket_ingress) ||
	    nsight_histograms_bpf__attach(skel))
		fail(EXIT_REFUSED, hint, "a BPF program cannot be attached: %s", strerror(errno));
	return s;
}

/* All but the program that enters arrivals; then that one. */
static void detach(struct nsight_histograms_bpf *skel)
{
	struct bpf_link *receive = skel->links.on_netif_receive_skb;

	skel->links.on_netif_receive_skb = NULL;
	nsight_histograms_bpf__detach(skel);
	bpf_link__destroy(receive);
}

/* Wait until that time, a signal, or the end of the reader. Passes a new clock offset to the
 * programs whenever the clock is set, and new numbers of filters, and prints slow latencies as they
 * come. */
static void wait_until(uint64_t when, int watch, volatile __s64 *offset, struct ring_buffer *slow,
		       struct followed *followed)
{
	int slow_fd = slow ? ring_buffer__epoll_fd(slow) : -1;

	while (!asked_to_stop) {
		struct pollfd fds[] = {{.fd = watch, .events = POLLIN},
				       {.fd = STDOUT_FILENO},
				       {.fd = slow_fd, .events = POLLIN},
				       {.fd = followed->fd, .events = POLLIN}};
		uint64_t now = clock_ns(CLOCK_MONOTONIC), left = when > now ? when - now : 0;
		struct timespec wait = {left / 1000000000, left % 1000000000};
		uint64_t unused;

		if (!left)
			return;
		if (ppoll(fds, 4, &wait, NULL) <= 0)
			continue;
		if (fds[1].revents & POLLERR)
			asked_to_stop = 1;
		if (fds[2].revents && ring_buffer__consume(slow) < 0)
			asked_to_stop = 1;
		if (fds[3].revents)
			followed_read(followed);
		if (fds[0].revents) {
			*offset = clock_realtime_offset();
			if (read(watch, &unused, sizeof(unused)) < 0 && errno == ECANCELED)
				clock_watch_again(watch);
		}
	}
}

static bool run(const struct arguments *args, struct nsight_histograms_bpf *skel,
		struct snapshot *s, struct ring_buffer *slow)
{
	uint64_t next = clock_ns(CLOCK_MONOTONIC), interval = args->interval_ms * MILLISECOND,
		 end = args->duration_ms ? next + args->duration_ms * MILLISECOND : UINT64_MAX,
		 late;
	volatile __s64 *offset = &skel->bss->realtime_offset;
	struct followed followed = {.ifindex = &skel->bss->only_ifindex,
				    .netns = &skel->bss->only_netns,
				    .netns_cookie = &skel->bss->only_netns_cookie,
				    .cgroup = &skel->bss->only_cgroup,
				    .fd = args->follow ? STDIN_FILENO : -1};
	volatile __u64 *n_gone = &((struct core *)s->cores)->counts[COUNT_FILTER_GONE];
	int watch = clock_watch();

	while (!asked_to_stop && next < end) {
		next += interval;
		wait_until(next < end ? next : end, watch, offset, slow, &followed);
		if (asked_to_stop || next >= end)
			break;
		*offset = clock_realtime_offset();
		*n_gone += followed_is_gone(&followed);
		if (!snapshot_print(s, false))
			return false;
		/* If this process was stopped, one line stands for all the intervals. */
		late = clock_ns(CLOCK_MONOTONIC) - next;
		next += late - late % interval;
	}
	return true;
}

int main(int argc, char **argv)
{
	/* A slow reader still gets the line that the signal interrupts, and the last one. */
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART},
			 ignored = {.sa_handler = SIG_IGN};
	int n_cores = libbpf_num_possible_cpus(), stats = -1;
	struct nsight_histograms_bpf *skel = NULL;
	struct ring_buffer *slow = NULL;
	struct arguments args;
	struct snapshot s = {0};
	struct host host;
	uint64_t began = 0;
	uint32_t stages;
	bool read;

	arguments_parse(argc, argv, &args);
	libbpf_set_print(no_print);
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGPIPE, &ignored, NULL);
	if (n_cores < 1)
		fail(EXIT_REFUSED, "mount /sys", "the number of cores is unknown");
	host_look(&host, args.no_probes);
	stages = host_stages(&host) & (args.stages ? args.stages : ~host_stages_by_name(&host));
	if (!args.list && !stages)
		fail(EXIT_MISSING, "--list-stages says what it lacks",
		     "this kernel has none of the stages");
	if (!args.list) {
		if (args.cost)
			stats = bpf_enable_stats(BPF_STATS_RUN_TIME);
		if (args.receive_stamps && clock_receive_stamps() < 0)
			fail(EXIT_REFUSED, "leave out --receive-stamps",
			     "the kernel does not stamp packets: %s", strerror(errno));
		skel = load(&args, &host, stages, n_cores);
		began = clock_ns(CLOCK_REALTIME); /* every count is 0 */
		s = attach(&args, &host, skel, n_cores);
	}
	printf("{\"format\":1,\"n_buckets\":%d,\"group_by\":\"%s\",\"began_ns\":%" PRIu64 ",",
	       N_BUCKETS, group_by_name(args.group_by), began);
	host_print(&host, stages, stdout);
	puts("}");
	read = !fflush(stdout);
	if (args.list)
		return read ? 0 : EXIT_OUTPUT;
	if (args.triggers)
		slow = ring_buffer__new(bpf_map__fd(skel->maps.slow_latencies), snapshot_print_slow,
					&s, NULL);
	read = read && run(&args, skel, &s, slow);
	detach(skel);
	/* Slow latencies that came after the loader last looked */
	if (read && slow)
		read = ring_buffer__consume(slow) >= 0;
	ring_buffer__free(slow);
	if (read)
		read = snapshot_print(&s, true);
	if (stats >= 0)
		close(stats);
	nsight_histograms_bpf__destroy(skel);
	return read ? 0 : EXIT_OUTPUT;
}
