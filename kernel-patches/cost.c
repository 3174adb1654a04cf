/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Measures what a tracepoint costs the operation that passes it.
 *
 *     cost [ROUNDS]
 *
 * Counts TSC ticks around one operation, ROUNDS times, and prints the lowest and the median:
 *
 *   adjtimex   sets the frequency that is set already: one update of the core timekeeper
 *   udp        100 bytes sent over loopback and read: queued, copied and read once
 *   tcp        the same over a connection
 *   tcp_rr     a request of one byte and a reply of one byte, as netperf's TCP_RR
 *   udp_flood  64 datagrams of 64 bytes sent, then read: divided by 64. ROUNDS / 8 times
 *
 * In a guest whose TSC counts instructions (tests/machinery/guest/run --icount) these are
 * instructions, which are neither nanoseconds nor cycles: caches and branch prediction have no part
 * in it. On a real machine they are ticks of its TSC.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>
#include <x86intrin.h>

enum { BYTES = 100, FLOOD = 64, FLOOD_BYTES = 64 };

static int udp_tx, udp_rx, tcp_tx, tcp_rx;
static struct timex current_frequency;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void op_adjtimex(void)
{
	struct timex tx = {.modes = ADJ_FREQUENCY, .freq = current_frequency.freq};

	if (adjtimex(&tx) < 0)
		die("adjtimex");
}

static void move(int tx, int rx, size_t bytes)
{
	char buf[BYTES] = {0};

	if (send(tx, buf, bytes, 0) != (ssize_t)bytes || recv(rx, buf, bytes, 0) != (ssize_t)bytes)
		die("send or recv");
}

static void op_udp(void)
{
	move(udp_tx, udp_rx, BYTES);
}

static void op_tcp(void)
{
	move(tcp_tx, tcp_rx, BYTES);
}

static void op_tcp_rr(void)
{
	move(tcp_tx, tcp_rx, 1);
	move(tcp_rx, tcp_tx, 1);
}

static void op_udp_flood(void)
{
	char buf[FLOOD_BYTES] = {0};

	for (int i = 0; i < FLOOD; i++) {
		if (send(udp_tx, buf, sizeof(buf), 0) != sizeof(buf))
			die("send");
	}
	for (int i = 0; i < FLOOD; i++) {
		if (recv(udp_rx, buf, sizeof(buf), MSG_DONTWAIT) != sizeof(buf))
			die("recv");
	}
}

static int compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* per: how many times op() does the counted operation */
static void measure(const char *name, void (*op)(void), size_t per, size_t rounds, uint64_t *ticks)
{
	for (size_t i = 0; i < 100; i++)
		op();
	for (size_t i = 0; i < rounds; i++) {
		const uint64_t begun = __rdtsc();

		op();
		ticks[i] = __rdtsc() - begun;
	}
	qsort(ticks, rounds, sizeof(*ticks), compare);
	printf("%s\t%llu\t%llu\n", name, (unsigned long long)(ticks[0] / per),
	       (unsigned long long)(ticks[rounds / 2] / per));
}

static void connect_both(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr *addr = (struct sockaddr *)&at;
	socklen_t len = sizeof(at);
	const int one = 1;
	int listener;

	udp_rx = socket(AF_INET, SOCK_DGRAM, 0);
	udp_tx = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(udp_rx, addr, len) || getsockname(udp_rx, addr, &len) ||
	    connect(udp_tx, addr, len))
		die("udp");

	at.sin_port = 0;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	tcp_tx = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, addr, len) || getsockname(listener, addr, &len) || listen(listener, 1) ||
	    connect(tcp_tx, addr, len))
		die("tcp");
	tcp_rx = accept(listener, NULL, NULL);
	if (tcp_rx < 0 || setsockopt(tcp_tx, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("accept");
	close(listener);
}

int main(int argc, char **argv)
{
	const size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 0) : 2000;
	uint64_t *ticks = calloc(rounds, sizeof(*ticks));

	if (!rounds || !ticks)
		return 1;
	if (adjtimex(&current_frequency) < 0)
		die("adjtimex");
	connect_both();
	measure("adjtimex", op_adjtimex, 1, rounds, ticks);
	measure("udp", op_udp, 1, rounds, ticks);
	measure("tcp", op_tcp, 1, rounds, ticks);
	measure("tcp_rr", op_tcp_rr, 1, rounds, ticks);
	measure("udp_flood", op_udp_flood, FLOOD, (rounds + 7) / 8, ticks);
	free(ticks);
	return 0;
}
