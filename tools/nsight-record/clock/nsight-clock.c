// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-clock: record how TSC relates to the system's clocks.
 *
 * The kernel republishes the conversion from TSC to CLOCK_REALTIME and its
 * relatives to the vDSO at every timekeeper update. Polling the page's sequence
 * count, asleep in between, sees every update together with the TSC interval in
 * which it came into force; nothing is traced and no core is burned. Where the
 * page is of no use, clock_gettime() between two TSC readings has to do.
 *
 * The output is described in Documentation/formats.md, "Clock readings".
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf_clock.h"
#include "phc.h"
#include "tsc.h"
#include "vvar.h"

#define NSEC_PER_SEC 1000000000LL
#define CLOCKSOURCE  "/sys/devices/system/clocksource/clocksource0/current_clocksource"

/* Exit codes, the same as nsight-report's. */
enum { EXIT_OK = 0, EXIT_USAGE = 2, EXIT_MISSING = 4, EXIT_IO = 5 };

#define DEFAULT_POLL_US 1000
/*
 * Where this many updates in a row went on along the same line, nobody disciplines the clock, and
 * an update is looked for less often: three quarters of a tick of the usual 250 a second. Of a
 * clock that then bends, one bracket is that wide. A kernel that updates more often misses some;
 * after so many the pace is the usual one for good.
 */
#define CALM_UPDATES 64
#define CALM_POLLS   3
#define CALM_MISSED  4
/* Bracketed readings: a cross-check of the page, or all there is. */
#define CHECK_NS   100000000LL
#define BRACKET_NS 10000000LL
#define PHC_NS	   100000000LL
/* The tightest of this many counts; an interrupt between two readings spoils one. */
#define N_TRIES 5
#define MAX_PHC 8

struct recorder {
	int out;
	const char *out_name;
	bool have_vvar;
	struct vvar vvar;
	struct vvar_state state;
	uint64_t seen; /* TSC at which state was last known to be in force */
	struct phc phc[MAX_PHC];
	int n_phc;
	uint64_t tsc_khz;
	uint64_t polls, updates, missed, phc_failures;
	unsigned int calm, calm_missed; /* updates in a row on one line; missed in between */
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static void __attribute__((noreturn, format(printf, 3, 4)))
die(int code, const char *hint, const char *fmt, ...)
{
	va_list ap;

	fputs("error: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	if (hint)
		fprintf(stderr, "hint: %s\n", hint);
	exit(code);
}

/* One whole line per write(), so that a killed recorder leaves whole lines. */
static void __attribute__((format(printf, 2, 3))) emit(struct recorder *r, const char *fmt, ...)
{
	char line[512];
	size_t len, done = 0;
	va_list ap;

	va_start(ap, fmt);
	len = (size_t)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	while (done < len) {
		ssize_t n = write(r->out, line + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die(EXIT_IO,
			    "free some space, or write elsewhere with -o; lines already written "
			    "are usable",
			    "%s: %s", r->out_name, strerror(errno));
		done += (size_t)n;
	}
}

static int64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
}

static void emit_state(struct recorder *r, uint64_t prev, uint64_t now)
{
	const struct vvar_state *s = &r->state;

	emit(r,
	     "V\t%" PRIu64 "\t%" PRIu64 "\t%u\t%d\t%" PRIu64 "\t%u\t%u"
	     "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
	     "\t%" PRIu64 "\t%" PRIu64 "\n",
	     prev, now, s->seq, s->mode, s->cycle_last, s->mult, s->shift, s->sec[0], s->snsec[0],
	     s->sec[1], s->snsec[1], s->sec[2], s->snsec[2], s->sec[3], s->snsec[3]);
}

/*
 * Read the state and a TSC value at which it was in force: the page is looked
 * at again after the TSC, or an update in between would be dated too early.
 */
static uint64_t read_state(struct recorder *r)
{
	uint64_t tsc;

	do {
		if (!vvar_read(&r->vvar, &r->state))
			die(EXIT_MISSING, NULL, "the vvar page never became consistent");
		tsc = tsc_ordered();
	} while (vvar_seq(&r->vvar) != r->state.seq);
	return tsc;
}

/* Whether a state goes on along the line of the one before. */
static bool same_line(const struct vvar_state *old, const struct vvar_state *new)
{
	bool same = old->mode == new->mode && old->mult == new->mult && old->shift == new->shift;

	for (int c = 0; c < VVAR_NR && same; c++)
		same = vvar_ns(old, c, new->cycle_last) == vvar_ns(new, c, new->cycle_last);
	return same;
}

static bool is_calm(const struct recorder *r)
{
	return r->calm >= CALM_UPDATES && r->calm_missed < CALM_MISSED;
}

/* Look at the page; write a V record if the timekeeper was updated since. */
static void poll_vvar(struct recorder *r)
{
	uint64_t before = tsc_ordered(), prev = r->seen, missed;
	struct vvar_state old = r->state;

	r->polls++;
	if (vvar_seq(&r->vvar) == old.seq) {
		r->seen = before;
		return;
	}
	r->seen = read_state(r);
	r->updates++;
	missed = (r->state.seq - old.seq) / 2 - 1;
	r->missed += missed;
	if (is_calm(r))
		r->calm_missed += missed > 0;
	r->calm = same_line(&old, &r->state) ? r->calm + 1 : 0;
	emit_state(r, prev, r->seen);
}

/*
 * Bracketed readings of all clocks. They are written after another look at the
 * page, so that every B line also says up to when the V line before it was in
 * force: that is where a capture ends that was cut.
 */
static void read_brackets(struct recorder *r)
{
	uint64_t before[VVAR_NR], after[VVAR_NR];
	int64_t ns[VVAR_NR];

	for (int c = 0; c < VVAR_NR; c++) {
		uint64_t best = UINT64_MAX;

		for (int i = 0; i < N_TRIES; i++) {
			uint64_t t0 = tsc_ordered();
			int64_t n = now_ns(vvar_clockid[c]);
			uint64_t t1 = tsc_ordered();

			if (t1 - t0 >= best)
				continue;
			best = t1 - t0;
			before[c] = t0;
			after[c] = t1;
			ns[c] = n;
		}
	}
	if (r->have_vvar)
		poll_vvar(r);
	for (int c = 0; c < VVAR_NR; c++)
		emit(r, "B\t%s\t%" PRIu64 "\t%" PRId64 "\t%" PRIu64 "\n", vvar_clock_name[c],
		     before[c], ns[c], after[c]);
}

static void read_phcs(struct recorder *r)
{
	for (int i = 0; i < r->n_phc; i++) {
		struct phc_reading p;

		if (phc_read(&r->phc[i], &p)) {
			r->phc_failures++;
			continue;
		}
		emit(r, "P\tphc:%s\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\n", r->phc[i].name,
		     r->phc[i].method, p.before, p.phc, p.after);
	}
}

/* The rate that the readings themselves show; only the header states it. */
static uint64_t measure_tsc_khz(const struct recorder *r)
{
	struct timespec pause = {.tv_nsec = 20000000};
	uint64_t tsc;
	int64_t ns;

	if (r->have_vvar) /* 2^shift / mult cycles are one nanosecond */
		return (uint64_t)(((unsigned __int128)1000000 << r->state.shift) / r->state.mult);
	ns = now_ns(CLOCK_MONOTONIC_RAW);
	tsc = tsc_ordered();
	nanosleep(&pause, NULL);
	ns = now_ns(CLOCK_MONOTONIC_RAW) - ns;
	tsc = tsc_ordered() - tsc;
	return ns > 0 ? tsc * 1000000 / (uint64_t)ns : 0;
}

static void read_clocksource(char *name, size_t size)
{
	FILE *f = fopen(CLOCKSOURCE, "re");

	snprintf(name, size, "unknown");
	if (f) {
		if (fgets(name, (int)size, f))
			name[strcspn(name, " \t\n")] = 0;
		fclose(f);
	}
}

/* A time namespace shifts CLOCK_MONOTONIC and CLOCK_BOOTTIME; the kernel's stamps are not shifted.
 */
static void refuse_time_namespace(void)
{
	FILE *f = fopen("/proc/self/timens_offsets", "re");
	char line[128];

	while (f && fgets(line, sizeof(line), f)) {
		long long sec, nsec;

		if (sscanf(line, "%*s %lld %lld", &sec, &nsec) == 2 && (sec || nsec))
			die(EXIT_MISSING,
			    "run it in the initial one: nsenter --target 1 --time nsight-clock ...",
			    "this process is in a time namespace (offset %lld.%09lld s)", sec,
			    nsec);
	}
	if (f)
		fclose(f);
}

static void write_header(struct recorder *r)
{
	struct perf_clock perf;
	char clocksource[64];

	read_clocksource(clocksource, sizeof(clocksource));
	emit(r, "#nsight-clock 1 tsc_khz=%" PRIu64 " clocksource=%s\n", r->tsc_khz, clocksource);
	if (perf_clock_read(&perf))
		emit(r, "C\t%u\t%u\t%" PRId64 "\n", perf.mult, perf.shift, (int64_t)perf.zero);
}

/* In steps of the interval, but never trying to catch up after a long sleep. */
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
	/* What a conversion may rely on ends here. */
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
		die(EXIT_USAGE, NULL, "more than %d PTP hardware clocks", MAX_PHC);
	err = phc_open(&r->phc[r->n_phc], path);
	if (err)
		die(EXIT_MISSING,
		    err == -EACCES ? "run as root" : "ls /dev/ptp* lists the clocks there are",
		    "%s: %s", path, err == -ENOTTY ? "not a PTP hardware clock" : strerror(-err));
	err = phc_read(&r->phc[r->n_phc], &p);
	if (err && err != -EAGAIN)
		die(EXIT_MISSING, NULL, "%s: cannot be compared with CLOCK_REALTIME: %s", path,
		    strerror(-err));
	r->n_phc++;
}

static void add_iface(struct recorder *r, const char *iface)
{
	char path[32];
	int n = phc_of_iface(iface);

	if (n == -2)
		die(EXIT_MISSING, "ip link lists the interfaces of this network namespace",
		    "%s: no such interface", iface);
	if (n < 0)
		die(EXIT_MISSING,
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
		die(EXIT_USAGE, NULL, "%s %s: not a number from 0 to %.0f", option, text, max);
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
	long poll_us = -1;				 /* by what the clock does */
	int64_t cpu_ns, wall_ns;
	double seconds = 0;
	const char *why;
	int opt;

	while ((opt = getopt_long(argc, argv, "d:o:h", options, NULL)) != -1) {
		switch (opt) {
		case 'd':
			seconds = number(optarg, "--duration", 1e9);
			if (seconds == 0)
				die(EXIT_USAGE, "leave out -d to record until a signal",
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
			return EXIT_OK;
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
			die(EXIT_IO,
			    errno == EEXIST
				    ? "recordings are never overwritten: choose another name"
				    : NULL,
			    "%s: %s", r.out_name, strerror(errno));
	}

	/* From here on only: BTF was read once, the rest is what recording costs. */
	cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	wall_ns = now_ns(CLOCK_MONOTONIC);
	if (r.have_vvar)
		r.seen = read_state(&r);
	r.tsc_khz = measure_tsc_khz(&r);
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
	return EXIT_OK;
}
