// SPDX-License-Identifier: GPL-2.0-only
/*
 * Keeps a core busy in turns and logs when it really had the core: the ground truth for the
 * diagnosis "hog". If something preempted a turn, the log has the intervals in between.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "mark.h"

#define MARK_HOG 10 /* number of this disturbance in the marks */

/* A clock step above this means that the core was taken away; interrupts stay below it. */
#define GAP_NS	      20000
#define MAX_STRETCHES (4 << 20)

static const char usage_text[] =
	"usage: hog [-C CPU] [--burn-us N] [--idle-us N] [-d SECONDS] [-l LOG]\n"
	"Keeps a core busy for burn-us (default 3000), sleeps idle-us (default 17000), and "
	"repeats.\n"
	"\n"
	"  -C, --cpu N         core\n"
	"  -b, --burn-us N     -i, --idle-us N\n"
	"  -j, --jitter PCT    the idle time varies at random by this, default 30\n"
	"  -N, --nice N        niceness while busy, default 0\n"
	"  -f, --fifo PRIO     real-time priority instead: nothing normal preempts it\n"
	"  -d, --duration S    default: until SIGINT or SIGTERM\n"
	"  -l, --log FILE      start and end (CLOCK_MONOTONIC ns) of every busy interval\n"
	"\n"
	"Exit codes: 0, 1 error, 2 usage.\n";

static volatile sig_atomic_t stopped;
static int64_t (*intervals)[2];
static size_t n_intervals;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

static int64_t monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void add_interval(int64_t start, int64_t end)
{
	if (end > start && n_intervals < MAX_STRETCHES) {
		intervals[n_intervals][0] = start;
		intervals[n_intervals++][1] = end;
	}
}

static void burn(int64_t dur_ns)
{
	int64_t first = monotonic_ns(), start = first, last = first, now = first;

	while (now - first < dur_ns && !stopped) {
		now = monotonic_ns();
		if (now - last > GAP_NS) {
			add_interval(start, last);
			start = now;
		}
		last = now;
	}
	add_interval(start, last);
}

static int fail(const char *what)
{
	fprintf(stderr, "error: hog: %s: %s\n", what, strerror(errno));
	return 1;
}

/* An empty log shows that signals are handled from now on: whoever ends the hog then gets a log. */
static int begin_log(const char *path)
{
	FILE *file = fopen(path, "w");

	return file && !fclose(file) ? 0 : fail(path);
}

static int write_log(const char *path, int cpu)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return fail(path);
	fprintf(file, "#nsight-hog 1 clock=monotonic pid=%d cpu=%d\nstart_ns\tend_ns\n",
		(int)getpid(), cpu);
	for (size_t i = 0; i < n_intervals; i++)
		fprintf(file, "%" PRId64 "\t%" PRId64 "\n", intervals[i][0], intervals[i][1]);
	fputs("#end\n", file);
	if (ferror(file) | fclose(file))
		return fail(path);
	return 0;
}

static long number(const char *text, long min, long max)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end || value < min || value > max) {
		fprintf(stderr,
			"error: hog: %s is not a number from %ld to %ld\nhint: see hog --help\n",
			text, min, max);
		exit(2);
	}
	return value;
}

static const struct option long_options[] = {
	{"cpu", 1, 0, 'C'},  {"burn-us", 1, 0, 'b'}, {"idle-us", 1, 0, 'i'},  {"jitter", 1, 0, 'j'},
	{"nice", 1, 0, 'N'}, {"fifo", 1, 0, 'f'},    {"duration", 1, 0, 'd'}, {"log", 1, 0, 'l'},
	{"help", 0, 0, 'h'}, {0, 0, 0, 0},
};

int main(int argc, char **argv)
{
	long cpu = -1, burn_us = 3000, idle_us = 17000, jitter = 30, niceness = 0, fifo = 0,
	     seconds = 0;
	struct sigaction action = {.sa_handler = on_signal};
	const char *log = NULL;
	int64_t end;
	int o;

	while ((o = getopt_long(argc, argv, "C:b:i:j:N:f:d:l:h", long_options, NULL)) != -1) {
		switch (o) {
		case 'C':
			cpu = number(optarg, 0, 1023);
			break;
		case 'b':
			burn_us = number(optarg, 1, 10000000);
			break;
		case 'i':
			idle_us = number(optarg, 0, 10000000);
			break;
		case 'j':
			jitter = number(optarg, 0, 100);
			break;
		case 'N':
			niceness = number(optarg, -20, 19);
			break;
		case 'f':
			fifo = number(optarg, 1, 50);
			break;
		case 'd':
			seconds = number(optarg, 1, 86400);
			break;
		case 'l':
			log = optarg;
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 0;
		default:
			fputs("hint: see hog --help\n", stderr);
			return 2;
		}
	}
	intervals = calloc(MAX_STRETCHES, sizeof(*intervals));
	if (!intervals)
		return fail("memory");
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			return fail("--cpu");
	}
	if (niceness && setpriority(PRIO_PROCESS, 0, (int)niceness))
		return fail("--nice");
	if (fifo &&
	    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = (int)fifo}))
		return fail("--fifo");
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	if (log && begin_log(log))
		return 1;
	prctl(PR_SET_TIMERSLACK, 1);
	srand48(1);
	for (end = seconds ? monotonic_ns() + seconds * 1000000000 : INT64_MAX;
	     !stopped && monotonic_ns() < end;) {
		double factor = 1.0 + (drand48() * 2 - 1) * (double)jitter / 100;
		int64_t idle_ns = (int64_t)((double)idle_us * 1000 * factor);

		pt_mark(PT_MARK_BEGIN, MARK_HOG, 0);
		burn(burn_us * 1000);
		pt_mark(PT_MARK_END, MARK_HOG, 0);
		if (idle_ns && !stopped)
			nanosleep(&(struct timespec){idle_ns / 1000000000, idle_ns % 1000000000},
				  NULL);
	}
	return log ? write_log(log, (int)cpu) : 0;
}
