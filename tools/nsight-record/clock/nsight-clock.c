// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-clock: record how TSC relates to the system's clocks.
 *
 * At every timekeeper update the kernel publishes the conversion from TSC to CLOCK_REALTIME and its
 * relatives to the vDSO. This program polls the page's sequence count and sleeps in between. So it
 * sees every update together with the TSC interval in which it came into force; nothing is traced
 * and no core is kept busy. If the page cannot be used, it reads clock_gettime() between two TSC
 * readings instead.
 *
 * The output is described in Documentation/formats.md, "Clock readings".
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "readings.h"
#include "tsc.h"

#define DEFAULT_POLL_US 1000
/* While the clock is calm, it is polled this many times less often: three quarters of a tick at the
 * usual 250 ticks a second. If the clock then bends, one bracket is that wide. */
#define CALM_POLLS 3
/* Bracketed readings: a cross-check of the page, or the only data there is. */
#define CHECK_NS   100000000LL
#define BRACKET_NS 10000000LL
#define PHC_NS	   100000000LL

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

/* A time namespace shifts CLOCK_MONOTONIC and CLOCK_BOOTTIME; the kernel's timestamps are not
 * shifted. */
static void refuse_time_namespace(void)
{
	FILE *f = fopen("/proc/self/timens_offsets", "re");
	char line[128];

	while (f && fgets(line, sizeof(line), f)) {
		long long sec, nsec;

		if (sscanf(line, "%*s %lld %lld", &sec, &nsec) == 2 && (sec || nsec))
			fail(EXIT_MISSING,
			     "run it in the initial one: nsenter --target 1 --time nsight-clock "
			     "...",
			     "this process is in a time namespace (offset %lld.%09lld s)", sec,
			     nsec);
	}
	if (f)
		fclose(f);
}

/* In steps of the interval, but without catching up after a long sleep. */
static bool due(uint64_t now, uint64_t *next, uint64_t interval)
{
	if (now < *next)
		return false;
	*next = now + interval;
	return true;
}

static void record(struct recorder *r, double seconds, long poll_us)
{
	uint64_t ms = r->tsc_khz ? r->tsc_khz : 1; /* cycles */
	uint64_t now = tsc_ordered(), start = now, next_bracket = 0, next_phc = now;
	struct timespec pause;

	while (!stop) {
		bool raw_tsc = r->have_vvar && r->state.mode == VVAR_MODE_TSC;
		long sleep_us = poll_us;

		now = tsc_ordered();
		if (seconds > 0 && (double)(now - start) / (double)ms >= seconds * 1e3)
			break;
		if (r->have_vvar)
			poll_vvar(r);
		if (due(now, &next_bracket, (raw_tsc ? CHECK_NS : BRACKET_NS) / 1000000 * ms))
			read_brackets(r);
		if (r->n_phc && due(now, &next_phc, PHC_NS / 1000000 * ms))
			read_phcs(r);
		if (!r->have_vvar)
			sleep_us = BRACKET_NS / 1000;
		else if (poll_us < 0)
			sleep_us = DEFAULT_POLL_US * (is_calm(r) ? CALM_POLLS : 1);
		if (!sleep_us)
			continue;
		pause = (struct timespec){sleep_us / 1000000, sleep_us % 1000000 * 1000};
		nanosleep(&pause, NULL);
	}
	/* A conversion can be relied on up to here. */
	if (r->n_phc)
		read_phcs(r);
	read_brackets(r);
}

static void usage(FILE *to)
{
	fputs("usage: nsight-clock [-d SECONDS] [-o FILE] [--poll-us N] [--phc DEV]... [--iface "
	      "NAME]...\n"
	      "\n"
	      "Record how TSC relates to the system's clocks until SECONDS have passed or a\n"
	      "signal (SIGINT, SIGTERM) arrives. Needs no privilege except for --phc.\n"
	      "\n"
	      "  -d, --duration SECONDS  stop after SECONDS (fractions allowed)\n"
	      "  -o, --output FILE       write to FILE, which must not exist; default: stdout\n"
	      "      --poll-us N         sleep N us between looks at the timekeeper (default "
	      "1000, and\n"
	      "                          3000 while nobody disciplines the clock; 0 never sleeps "
	      "and\n"
	      "                          keeps one core busy)\n"
	      "      --phc DEV           also read PTP hardware clock DEV, such as /dev/ptp0\n"
	      "      --iface NAME        also read the PTP hardware clock of network interface "
	      "NAME\n"
	      "  -h, --help              this text\n"
	      "\n"
	      "exit codes: 0 done, 2 usage, 4 something this machine lacks, 5 writing failed\n",
	      to);
}

static void add_phc(struct recorder *r, const char *path)
{
	struct phc_reading p;
	int err;

	if (r->n_phc == MAX_PHC)
		fail(EXIT_USAGE, NULL, "more than %d PTP hardware clocks", MAX_PHC);
	err = phc_open(&r->phc[r->n_phc], path);
	if (err)
		fail(EXIT_MISSING,
		     err == -EACCES ? "run as root" : "ls /dev/ptp* lists the clocks there are",
		     "%s: %s", path, err == -ENOTTY ? "not a PTP hardware clock" : strerror(-err));
	err = phc_read(&r->phc[r->n_phc], &p);
	if (err && err != -EAGAIN)
		fail(EXIT_MISSING, NULL, "%s: cannot be compared with CLOCK_REALTIME: %s", path,
		     strerror(-err));
	r->n_phc++;
}

static void add_iface(struct recorder *r, const char *iface)
{
	char path[32];
	int n = phc_of_iface(iface);

	if (n == -2)
		fail(EXIT_MISSING, "ip link lists the interfaces of this network namespace",
		     "%s: no such interface", iface);
	if (n < 0)
		fail(EXIT_MISSING,
		     "leave out --iface: without hardware timestamps there is nothing to convert",
		     "%s: no PTP hardware clock", iface);
	snprintf(path, sizeof(path), "/dev/ptp%d", n);
	add_phc(r, path);
}

static double number(const char *text, const char *option, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !isfinite(value) || value < 0 || value > max)
		fail(EXIT_USAGE, NULL, "%s %s: not a number from 0 to %.0f", option, text, max);
	return value;
}

int main(int argc, char **argv)
{
	enum { OPT_POLL = 256, OPT_PHC, OPT_IFACE };
	static const struct option options[] = {
		{"duration", required_argument, NULL, 'd'},
		{"output", required_argument, NULL, 'o'},
		{"poll-us", required_argument, NULL, OPT_POLL},
		{"phc", required_argument, NULL, OPT_PHC},
		{"iface", required_argument, NULL, OPT_IFACE},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct recorder r = {.out = STDOUT_FILENO, .out_name = "standard output"};
	struct sigaction sa = {.sa_handler = on_signal}; /* no SA_RESTART: wake the sleep */
	long poll_us = -1;				 /* -1: depends on what the clock does */
	int64_t cpu_ns, wall_ns;
	double seconds = 0;
	const char *why;
	int opt;

	while ((opt = getopt_long(argc, argv, "d:o:h", options, NULL)) != -1) {
		switch (opt) {
		case 'd':
			seconds = number(optarg, "--duration", 1e9);
			if (seconds == 0)
				fail(EXIT_USAGE, "leave out -d to record until a signal",
				     "--duration 0");
			break;
		case 'o':
			r.out_name = optarg;
			break;
		case OPT_POLL:
			poll_us = (long)number(optarg, "--poll-us", 1e6);
			break;
		case OPT_PHC:
			add_phc(&r, optarg);
			break;
		case OPT_IFACE:
			add_iface(&r, optarg);
			break;
		case 'h':
			usage(stdout);
			return EXIT_SUCCESS;
		default:
			usage(stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		usage(stderr);
		return EXIT_USAGE;
	}
	refuse_time_namespace();

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error to report */

	why = vvar_open(&r.vvar);
	if (why)
		fprintf(stderr,
			"nsight-clock: polling the timekeeper is not possible, using paired "
			"readings: %s\n",
			why);
	r.have_vvar = !why;

	if (strcmp(r.out_name, "standard output")) {
		r.out = open(r.out_name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
		if (r.out < 0)
			fail(EXIT_OUTPUT,
			     errno == EEXIST
				     ? "recordings are never overwritten: choose another name"
				     : NULL,
			     "%s: %s", r.out_name, strerror(errno));
	}

	/* Measure from here on: BTF was read once, and the rest is the cost of recording. */
	cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	wall_ns = now_ns(CLOCK_MONOTONIC);
	if (r.have_vvar)
		r.seen = read_state(&r);
	write_header(&r);
	if (r.have_vvar) {
		r.seen = read_state(&r); /* the header took a while */
		emit_state(&r, r.seen, r.seen);
	}
	record(&r, seconds, poll_us);
	cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
	wall_ns = now_ns(CLOCK_MONOTONIC) - wall_ns;
	emit(&r, "E\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRId64 "\t%" PRId64 "\n", r.polls,
	     r.updates, r.missed, cpu_ns, wall_ns);

	fprintf(stderr,
		"nsight-clock: %" PRIu64 " polls, %" PRIu64 " timekeeper updates, %" PRIu64
		" missed; "
		"%.2f %% of one core over %.1f s\n",
		r.polls, r.updates, r.missed, 100.0 * (double)cpu_ns / (double)wall_ns,
		(double)wall_ns / 1e9);
	if (r.phc_failures)
		fprintf(stderr, "nsight-clock: %" PRIu64 " PHC readings failed\n", r.phc_failures);
	return EXIT_SUCCESS;
}
