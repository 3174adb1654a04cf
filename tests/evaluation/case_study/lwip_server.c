// SPDX-License-Identifier: GPL-2.0-only
/*
 * lwip-server - an echo server on lwIP, a TCP stack that is a library of the process
 *
 *	PRECONFIGURED_TAPIF=TAP lwip-server ADDRESS GATEWAY PORT TURN
 *
 * The kernel has a tap device and no socket: Ethernet frames go to lwIP's thread, and lwIP
 * implements TCP. One thread serves every connection. TURN: how many pieces of PIECE bytes it
 * answers on one connection before it checks the others.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/ip4_addr.h>
#include <lwip/netif.h>
#include <lwip/sockets.h>
#include <lwip/tcpip.h>
#include <netif/tapif.h>

#define PIECE		512
#define MAX_CONNECTIONS 64

static volatile uint64_t sink;

static void fail(const char *what)
{
	fprintf(stderr, "lwip-server: error: %s\n", what);
	exit(1);
}

/* The application's work for a request: here 20 ns per byte. */
__attribute__((noinline)) static void work(size_t n)
{
	uint64_t sum = sink;

	for (size_t i = 0; i < n * 16; i++)
		sum = sum * 6364136223846793005u + 1442695040888963407u;
	sink = sum;
}

static void ready(void *arg)
{
	(void)arg;
}

static int open_listener(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = lwip_htons(port)};
	int fd = lwip_socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || lwip_bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    lwip_listen(fd, MAX_CONNECTIONS))
		fail("listen");
	return fd;
}

/* Answers up to TURN pieces; 0: the peer closed the connection. */
static int serve(int fd, int turn)
{
	static char bytes[PIECE];

	for (int i = 0; i < turn; i++) {
		ssize_t n = lwip_recv(fd, bytes, sizeof(bytes), i ? MSG_DONTWAIT : 0);

		if (n <= 0)
			return i > 0;
		work((size_t)n);
		if (lwip_send(fd, bytes, (size_t)n, 0) != n)
			return 0;
	}
	return 1;
}

static void run(int listener, int turn)
{
	static struct pollfd fds[MAX_CONNECTIONS + 1];
	nfds_t n = 1;
	int yes = 1;

	fds[0] = (struct pollfd){.fd = listener, .events = POLLIN};
	for (;;) {
		if (lwip_poll(fds, n, -1) < 0)
			fail("poll");
		for (nfds_t i = n - 1; i > 0; i--) {
			if (!(fds[i].revents & (POLLIN | POLLERR | POLLHUP)))
				continue;
			if (!serve(fds[i].fd, turn)) {
				lwip_close(fds[i].fd);
				fds[i] = fds[--n];
			}
		}
		if ((fds[0].revents & POLLIN) && n <= MAX_CONNECTIONS) {
			int fd = lwip_accept(listener, NULL, NULL);

			if (fd < 0)
				fail("accept");
			lwip_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
			fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
		}
	}
}

int main(int argc, char **argv)
{
	static struct netif tap;
	ip4_addr_t address, mask, gateway;
	int turn = argc == 5 ? atoi(argv[4]) : 0;

	if (turn < 1 || !ip4addr_aton(argv[1], &address) || !ip4addr_aton(argv[2], &gateway) ||
	    !getenv("PRECONFIGURED_TAPIF")) {
		fputs("usage: PRECONFIGURED_TAPIF=TAP lwip-server ADDRESS GATEWAY PORT TURN\n",
		      stderr);
		return 2;
	}
	IP4_ADDR(&mask, 255, 255, 255, 0);
	tcpip_init(ready, NULL);
	LOCK_TCPIP_CORE();
	if (!netif_add(&tap, &address, &mask, &gateway, NULL, tapif_init, tcpip_input))
		fail("tap device");
	netif_set_default(&tap);
	netif_set_up(&tap);
	netif_set_link_up(&tap);
	UNLOCK_TCPIP_CORE();
	int listener = open_listener((uint16_t)atoi(argv[3]));
	puts("ready");
	fflush(stdout);
	run(listener, turn);
}
