// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many messages per second with few system calls: UDP datagrams to itself over loopback, sent and
 * received in batches, on one core.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_BATCH 1024
#define MAX_SIZE  1472
#define MAX_BYTES 65000 /* fits into an IPv4 datagram */
#define MAX_CUTS  64	/* UDP_MAX_SEGMENTS of older kernels */
#define DRAIN_NS  200000000LL

static const char usage_text[] =
	"usage: batch -p PORT -r RATE [options]\n"
	"Sends UDP datagrams to itself over loopback and receives them.\n"
	"\n"
	"  -p, --port PORT     that receives\n"
	"  -a, --address IPv4  of both ends, default 127.0.0.1\n"
	"  -r, --rate N        datagrams a second\n"
	"  -b, --batch N       datagrams of a system call, default 32\n"
	"  -g, --segment       the kernel cuts a batch out of one large datagram (UDP_SEGMENT)\n"
	"  -z, --size N        bytes of a datagram, default 64\n"
	"  -d, --duration S    default 5\n"
	"  -C, --cpu N         run on that core only\n"
	"\n"
	"Prints one line at the end: datagrams sent, datagrams received, ns that it took.\n"
	"Exit codes: 0, 1 error, 2 usage. SIGINT and SIGTERM end it early.\n";

static volatile sig_atomic_t stopped;
static char payload[MAX_BYTES], received[MAX_BATCH][MAX_SIZE];
static struct mmsghdr out[MAX_BATCH], in[MAX_BATCH];
static struct iovec out_bytes, in_bytes[MAX_BATCH];

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

static void sleep_until(int64_t ns)
{
	struct timespec ts = {ns / 1000000000, ns % 1000000000};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

static int fail(const char *what)
{
	fprintf(stderr, "error: batch: %s: %s\n", what, strerror(errno));
	return 1;
}

static double number(const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max)) {
		fprintf(stderr,
			"error: batch: %s is not a number from %g to %g\nhint: see batch --help\n",
			text, min, max);
		exit(2);
	}
	return value;
}

/* Receive what has arrived, without waiting. */
static uint64_t receive(int fd, unsigned int batch)
{
	uint64_t total = 0;
	int n;

	do {
		n = recvmmsg(fd, in, batch, MSG_DONTWAIT, NULL);
		total += n > 0 ? (uint64_t)n : 0;
	} while (n == (int)batch);
	return total;
}

static const struct option long_options[] = {
	{"port", 1, 0, 'p'},	 {"address", 1, 0, 'a'},
	{"rate", 1, 0, 'r'},	 {"batch", 1, 0, 'b'},
	{"segment", 0, 0, 'g'},	 {"size", 1, 0, 'z'},
	{"duration", 1, 0, 'd'}, {"cpu", 1, 0, 'C'},
	{"help", 0, 0, 'h'},	 {0, 0, 0, 0},
};

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET}, from = {.sin_family = AF_INET};
	struct sigaction action = {.sa_handler = on_signal};
	unsigned int batch = 32, size = 64;
	double rate = 0, seconds = 5;
	const char *address = "127.0.0.1";
	int sender, receiver, cpu = -1, o, buffer = 8 << 20, segment = 0;
	uint64_t n_sent = 0, n_received = 0;
	int64_t start, end, last;

	while ((o = getopt_long(argc, argv, "p:a:r:b:gz:d:C:h", long_options, NULL)) != -1) {
		switch (o) {
		case 'p':
			to.sin_port = htons((uint16_t)number(optarg, 1, 65535));
			break;
		case 'a':
			address = optarg;
			break;
		case 'r':
			rate = number(optarg, 1, 1e8);
			break;
		case 'b':
			batch = (unsigned int)number(optarg, 1, MAX_BATCH);
			break;
		case 'g':
			segment = 1;
			break;
		case 'z':
			size = (unsigned int)number(optarg, 1, MAX_SIZE);
			break;
		case 'd':
			seconds = number(optarg, 0.001, 86400);
			break;
		case 'C':
			cpu = (int)number(optarg, 0, 1023);
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 0;
		default:
			fputs("hint: see batch --help\n", stderr);
			return 2;
		}
	}
	if (!to.sin_port || !rate || inet_pton(AF_INET, address, &to.sin_addr) != 1) {
		fputs("error: batch: --port, --rate and an IPv4 --address are needed\n"
		      "hint: see batch --help\n",
		      stderr);
		return 2;
	}
	from.sin_addr = to.sin_addr;
	receiver = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (receiver < 0 || sender < 0)
		return fail("socket");
	/* Room for several batches, also if the limit for users is lower. */
	if (setsockopt(receiver, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)))
		setsockopt(receiver, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
	if (bind(receiver, (struct sockaddr *)&to, sizeof(to)) ||
	    bind(sender, (struct sockaddr *)&from, sizeof(from)) ||
	    connect(sender, (struct sockaddr *)&to, sizeof(to)))
		return fail(address);
	if (segment && (batch > MAX_CUTS || batch * size > MAX_BYTES)) {
		fputs("error: batch: --segment cuts at most 64 datagrams out of 65000 bytes\n"
		      "hint: a smaller --batch or --size\n",
		      stderr);
		return 2;
	}
	if (segment && setsockopt(sender, SOL_UDP, UDP_SEGMENT, &size, sizeof(size)))
		return fail("UDP_SEGMENT");
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			return fail("--cpu");
	}
	out_bytes = (struct iovec){payload, segment ? size * batch : size};
	for (unsigned int i = 0; i < batch; i++) {
		out[i].msg_hdr = (struct msghdr){.msg_iov = &out_bytes, .msg_iovlen = 1};
		in_bytes[i] = (struct iovec){received[i], MAX_SIZE};
		in[i].msg_hdr = (struct msghdr){.msg_iov = &in_bytes[i], .msg_iovlen = 1};
	}
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	prctl(PR_SET_TIMERSLACK, 1);
	start = monotonic_ns();
	end = start + (int64_t)(seconds * 1e9);
	while (!stopped && monotonic_ns() < end) {
		int n = sendmmsg(sender, out, segment ? 1 : batch, 0);

		if (n < 0 && errno != EINTR)
			return fail("sendmmsg");
		n_sent += n > 0 ? (uint64_t)n * (segment ? batch : 1) : 0;
		n_received += receive(receiver, batch);
		/* The rate holds for the whole run: a late sender sends the next ones at once. */
		sleep_until(start + (int64_t)((double)n_sent * 1e9 / rate));
	}
	last = monotonic_ns();
	while (n_received < n_sent && monotonic_ns() < last + DRAIN_NS) {
		n_received += receive(receiver, batch);
		sleep_until(monotonic_ns() + 1000000);
	}
	printf("%llu %llu %lld\n", (unsigned long long)n_sent, (unsigned long long)n_received,
	       (long long)(last - start));
	return 0;
}
