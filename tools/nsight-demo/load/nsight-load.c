// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load client whose log names every request by connection and byte range, so that it joins
 * exactly to the messages that nsight-report finds on the server's side.
 */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include "mark.h"
#include "conn.h"

#define DRAIN_NS 2000000000LL

struct options opts;
static volatile sig_atomic_t stopped;
static uint64_t n_base_requests;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

static void handle_events(int64_t until)
{
	int64_t wait = until - monotonic_ns();
	struct timespec ts = {0, 0};
	struct epoll_event events[64];
	int n;

	if (wait > 0) {
		ts.tv_sec = wait / 1000000000;
		ts.tv_nsec = wait % 1000000000;
	}
	n = epoll_pwait2(epoll_fd, events, 64, &ts, NULL);
	for (int i = 0; i < n; i++) {
		struct conn *c = events[i].data.ptr;

		if (events[i].events & EPOLLOUT)
			flush_out(c);
		if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
			continue;
		receive(c);
	}
}

static unsigned int in_flight(void)
{
	unsigned int n = 0;

	for (int i = 0; i < n_conns; i++)
		n += conns[i].count;
	return n;
}

static void store_keys(void)
{
	uint32_t n = opts.proto->has_setup ? (uint32_t)opts.keys + opts.big_setup : 0;

	for (uint32_t i = 0; i < n && !stopped; i++) {
		uint32_t key = i < (uint32_t)opts.keys ? i : BIG_KEY;

		enqueue(&conns[0], KIND_SETUP, key, monotonic_ns(), false);
		flush_out(&conns[0]);
		while (conns[0].count && !stopped) {
			handle_events(monotonic_ns() + 100000000);
			expire_datagrams(monotonic_ns());
		}
		if (!stopped && !record_at(record_count() - 1)->recv_ns)
			die("is UDP switched on in the server?", "no answer while storing key %u",
			    key);
	}
	for (int64_t now = monotonic_ns(), end = now + opts.start_delay_ms * 1000000LL;
	     now < end && !stopped; now = monotonic_ns())
		handle_events(end < now + 100000000 ? end : now + 100000000);
}

static int64_t next_gap_ns(void)
{
	if (!opts.poisson)
		return (int64_t)(1e9 / opts.rate);
	return (int64_t)(-log(1.0 - drand48()) * 1e9 / opts.rate);
}

static struct conn *free_conn(void)
{
	static int last;

	for (int i = 1; i <= n_base; i++) {
		struct conn *c = &conns[(last + i) % n_base];

		if (c->count < (unsigned int)opts.pipeline && !c->out_len) {
			last = c->index;
			return c;
		}
	}
	return NULL;
}

static bool send_burst(int64_t intended, bool counted)
{
	for (int i = n_base; i < n_conns; i++)
		if (conns[i].count)
			return false;
	for (int i = 0; i < opts.burst; i++)
		enqueue(&conns[n_base + i % opts.burst_conns], KIND_BURST,
			opts.burst_kind == KIND_GET && opts.proto->has_setup ? BIG_KEY
									     : (uint32_t)i,
			intended, counted);
	for (int i = n_base; i < n_conns; i++)
		flush_out(&conns[i]);
	return true;
}

static void run_load(void)
{
	int64_t start = monotonic_ns(), counted_from = start + (int64_t)(opts.warmup_s * 1e9);
	int64_t end = opts.count ? INT64_MAX : counted_from + (int64_t)(opts.duration_s * 1e9);
	int64_t next = start,
		next_burst = opts.burst ? start + opts.burst_every_ms * 1000000LL : INT64_MAX;
	int64_t now = start, give_up;
	struct conn *c;

	while (!stopped && now < end && (!opts.count || n_base_requests < opts.count)) {
		bool blocked = false;

		while (opts.rate == 0 || next <= now) {
			c = free_conn();
			blocked = !c;
			if (!c || (opts.count && n_base_requests >= opts.count))
				break;
			enqueue(c, opts.sets ? KIND_SET : KIND_GET,
				(uint32_t)(lrand48() % opts.keys), opts.rate == 0 ? now : next,
				now >= counted_from);
			flush_out(c);
			n_base_requests++;
			if (opts.rate > 0)
				next += next_gap_ns();
		}
		if (next_burst <= now && send_burst(next_burst, now >= counted_from))
			next_burst += opts.burst_every_ms * 1000000LL;
		give_up = now + 100000000;
		if (!blocked && opts.rate > 0 && next < give_up)
			give_up = next;
		if (next_burst > now && next_burst < give_up)
			give_up = next_burst;
		handle_events(give_up);
		now = monotonic_ns();
		expire_datagrams(now);
	}
	for (give_up = monotonic_ns() + DRAIN_NS; in_flight() && monotonic_ns() < give_up;) {
		handle_events(monotonic_ns() + 100000000);
		expire_datagrams(monotonic_ns());
	}
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};

	parse_options(argc, argv, &opts);
	srand48((long)opts.seed);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	record_begin_log(&opts);
	/* Reports count threads called nsight-* as NSight's own cost; the load is not. */
	prctl(PR_SET_NAME, "load-client");
	prctl(PR_SET_TIMERSLACK, 1); /* with the default of 50 us, requests of the open loop
				      * would bunch up */
	if (opts.cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(opts.cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			die("choose a core of this machine", "core %d: %s", opts.cpu,
			    strerror(errno));
	}
	open_connections();
	store_keys();
	if (opts.marks >= 0) {
		struct timespec pause = {0, 2000000};

		pt_mark(PT_MARK_START, opts.marks, 0);
		nanosleep(&pause, NULL); /* the emulator starts at its next turn */
	}
	run_load();
	if (opts.marks >= 0)
		pt_mark(PT_MARK_STOP, 0, 0);
	write_log();
	record_print_summary(&opts);
	if (n_stray)
		fprintf(stderr, "%llu late or foreign datagrams were ignored\n",
			(unsigned long long)n_stray);
	return 0;
}
