// SPDX-License-Identifier: GPL-2.0-only
/*
 * Bursts of UDP datagrams that nobody reads: receive work for the core that takes them.
 * Bounded by burst and gap, and every burst's time is logged.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_BURSTS (1 << 20)
/* A fraction of the shortest burst. */
#define POLL_NS 100000

static const char usage_text[] =
	"usage: flood -s ADDRESS [-p PORT] [-C CPU] [options]\n"
	"Sends bursts of UDP datagrams to a port that nobody reads.\n"
	"\n"
	"  -s, --server ADDRESS  IPv4\n"
	"  -p, --port PORT       default 9\n"
	"  -C, --cpu N           core of the sender\n"
	"  -b, --burst N         datagrams in a burst, default 300\n"
	"  -z, --size N          bytes of a datagram, default 64\n"
	"  -e, --every-us N      gap between bursts, default 20000\n"
	"  -d, --duration S      default: until SIGINT or SIGTERM\n"
	"  -l, --log FILE        start and end (CLOCK_MONOTONIC ns) of every burst\n"
	"  -r, --receiver N      a burst ends in the log when the backlog of core N is empty;\n"
	"                        by default when its last datagram was sent\n"
	"\n"
	"Exit codes: 0, 1 error, 2 usage.\n";

static volatile sig_atomic_t stopped;

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

static int fail(const char *what)
{
	fprintf(stderr, "error: flood: %s: %s\n", what, strerror(errno));
	return 1;
}

static long number(const char *text, long min, long max)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end || value < min || value > max) {
		fprintf(stderr,
			"error: flood: %s is not a number from %ld to %ld\nhint: see flood "
			"--help\n",
			text, min, max);
		exit(2);
	}
	return value;
}

/* An empty log means that signals are handled from now on: ending the flood yields a log. */
static int begin_log(const char *path)
{
	FILE *file = fopen(path, "w");

	return file && !fclose(file) ? 0 : fail(path);
}

static int write_log(const char *path, int64_t (*bursts)[2], size_t n)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return fail(path);
	fprintf(file, "#nsight-flood 1 clock=monotonic pid=%d\nstart_ns\tend_ns\n", (int)getpid());
	for (size_t i = 0; i < n; i++)
		fprintf(file, "%" PRId64 "\t%" PRId64 "\n", bursts[i][0], bursts[i][1]);
	fputs("#end\n", file);
	if (ferror(file) | fclose(file))
		return fail(path);
	return 0;
}

/*
 * How many packets wait for a core's receive softirq (softnet_seq_show(): backlog_len, cpu); -1 if
 * the kernel does not say. The packet that is being processed is not among them.
 */
static long backlog(long cpu)
{
	FILE *file = fopen("/proc/net/softnet_stat", "r");
	unsigned int waiting, of;
	long found = -1;
	char line[256];

	while (found < 0 && file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%*x %*x %*x %*x %*x %*x %*x %*x %*x %*x %*x %x %x", &waiting,
			   &of) == 2 &&
		    of == (unsigned long)cpu)
			found = waiting;
	}
	if (file)
		fclose(file);
	return found;
}

/* The time at which the core's backlog is empty, at most ``until``: then the next burst begins. */
static int64_t wait_for_receiver(long cpu, int64_t until)
{
	/* Even if stopped: the last burst in the log ends like the others. */
	while (backlog(cpu) > 0 && monotonic_ns() < until)
		nanosleep(&(struct timespec){0, POLL_NS}, NULL);
	return monotonic_ns();
}

static const struct option long_options[] = {
	{"server", 1, 0, 's'},	 {"port", 1, 0, 'p'}, {"cpu", 1, 0, 'C'},
	{"burst", 1, 0, 'b'},	 {"size", 1, 0, 'z'}, {"every-us", 1, 0, 'e'},
	{"duration", 1, 0, 'd'}, {"log", 1, 0, 'l'},  {"receiver", 1, 0, 'r'},
	{"help", 0, 0, 'h'},	 {0, 0, 0, 0},
};

int main(int argc, char **argv)
{
	long port = 9, cpu = -1, burst = 300, size = 64, every_us = 20000, seconds = 0,
	     receiver = -1;
	int64_t(*bursts)[2] = calloc(MAX_BURSTS, sizeof(*bursts)), end, sent_ns, next;
	struct sigaction action = {.sa_handler = on_signal};
	const char *address = NULL, *log = NULL;
	struct sockaddr_in to = {.sin_family = AF_INET};
	static char payload[65000];
	size_t n = 0;
	int fd, o;

	while ((o = getopt_long(argc, argv, "s:p:C:b:z:e:d:l:r:h", long_options, NULL)) != -1) {
		switch (o) {
		case 's':
			address = optarg;
			break;
		case 'p':
			port = number(optarg, 1, 65535);
			break;
		case 'C':
			cpu = number(optarg, 0, 1023);
			break;
		case 'b':
			burst = number(optarg, 1, 100000);
			break;
		case 'z':
			size = number(optarg, 1, (long)sizeof(payload));
			break;
		case 'e':
			every_us = number(optarg, 100, 10000000);
			break;
		case 'd':
			seconds = number(optarg, 1, 86400);
			break;
		case 'l':
			log = optarg;
			break;
		case 'r':
			receiver = number(optarg, 0, 1023);
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 0;
		default:
			fputs("hint: see flood --help\n", stderr);
			return 2;
		}
	}
	if (!address || inet_pton(AF_INET, address, &to.sin_addr) != 1) {
		fputs("error: flood: --server needs an IPv4 address\nhint: see flood --help\n",
		      stderr);
		return 2;
	}
	if (receiver >= 0 && backlog(receiver) < 0) {
		fprintf(stderr,
			"error: flood: the kernel does not tell the backlog of core %ld\n"
			"hint: /proc/net/softnet_stat needs a line of it, with 13 columns\n",
			receiver);
		return 1;
	}
	to.sin_port = htons((uint16_t)port);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (!bursts || fd < 0)
		return fail("socket or memory");
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			return fail("--cpu");
	}
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	if (log && begin_log(log))
		return 1;
	prctl(PR_SET_TIMERSLACK, 1);
	end = seconds ? monotonic_ns() + seconds * 1000000000 : INT64_MAX;
	while (!stopped && n < MAX_BURSTS && monotonic_ns() < end) {
		bursts[n][0] = monotonic_ns();
		for (long i = 0; i < burst && !stopped; i++) {
			/* Refusals (a full queue, an ICMP error) do not matter: the work was
			 * caused. */
			ssize_t sent = sendto(fd, payload, (size_t)size, 0, (struct sockaddr *)&to,
					      sizeof(to));

			(void)sent;
		}
		sent_ns = monotonic_ns();
		next = sent_ns + every_us * 1000;
		bursts[n++][1] = receiver >= 0 ? wait_for_receiver(receiver, next) : sent_ns;
		if (!stopped)
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME,
					&(struct timespec){next / 1000000000, next % 1000000000},
					NULL);
	}
	return log ? write_log(log, bursts, n) : 0;
}
