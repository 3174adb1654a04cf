// SPDX-License-Identifier: GPL-2.0-only
/*
 * pt-user-stack - a UDP echo server with a network stack of its own
 *
 *	pt-user-stack INTERFACE ADDRESS PORT [EVERY]
 *
 * Takes packets for ADDRESS, which the kernel does not have, from a ring that it shares with the
 * kernel (AF_PACKET), and polls that ring: no kernel socket gets the message, so there is
 * no hand-off. Every EVERYth request (default 10) is slow, and has marks.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mark.h"

#define FRAME	   2048
#define FRAMES	   256
#define SLOW_CAUSE 6
#define NOINLINE   __attribute__((noinline, noclone))

struct packet {
	struct ether_header ether;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

static volatile uint64_t sink;

static void fail(const char *what)
{
	fprintf(stderr, "pt-user-stack: error: %s: %s\n", what, strerror(errno));
	exit(1);
}

NOINLINE static void lookup(unsigned int turns)
{
	uint64_t sum = sink;

	for (unsigned int i = 0; i < turns; i++)
		sum = sum * 6364136223846793005u + 1442695040888963407u;
	sink = sum;
}

static int open_ring(const char *interface, unsigned char **ring)
{
	struct tpacket_req request = {
		.tp_block_size = FRAME * FRAMES,
		.tp_block_nr = 1,
		.tp_frame_size = FRAME,
		.tp_frame_nr = FRAMES,
	};
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
	int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_IP)), version = TPACKET_V2;

	address.sll_ifindex = (int)if_nametoindex(interface);
	if (fd < 0 || !address.sll_ifindex)
		fail(interface);
	if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof(request)) ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)))
		fail("ring");
	*ring = mmap(NULL, FRAME * FRAMES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*ring == MAP_FAILED)
		fail("mmap");
	return fd;
}

/* On purpose, the kernel's view of the address and port is not used. */
static bool is_ours(const struct packet *p, size_t n, uint32_t address, uint16_t port)
{
	return n >= sizeof(*p) && p->ip.ihl == 5 && p->ip.protocol == IPPROTO_UDP &&
	       p->ip.daddr == address && p->udp.dest == port;
}

NOINLINE static void answer(int fd, const void *frame, size_t n)
{
	static unsigned char bytes[FRAME];
	struct packet *p = (struct packet *)bytes;
	const struct packet *got = frame;

	memcpy(bytes, frame, n);
	memcpy(p->ether.ether_dhost, got->ether.ether_shost, ETH_ALEN);
	memcpy(p->ether.ether_shost, got->ether.ether_dhost, ETH_ALEN);
	p->ip.saddr = got->ip.daddr; /* swapped: the header's checksum stays right */
	p->ip.daddr = got->ip.saddr;
	p->udp.source = got->udp.dest;
	p->udp.dest = got->udp.source;
	p->udp.check = 0; /* none, which UDP over IPv4 allows */
	if (send(fd, bytes, n, 0) != (ssize_t)n)
		fail("send");
}

NOINLINE static void serve(int fd, const void *frame, size_t n, bool slow)
{
	if (slow)
		pt_mark(PT_MARK_BEGIN, SLOW_CAUSE, n);
	lookup(slow ? 100000 : 200);
	if (slow)
		pt_mark(PT_MARK_END, SLOW_CAUSE, n);
	answer(fd, frame, n);
}

int main(int argc, char **argv)
{
	unsigned long n_requests = 0, every = argc == 5 ? strtoul(argv[4], NULL, 10) : 10;
	unsigned char *ring;
	struct in_addr address;
	uint16_t port;
	int fd;

	if (argc < 4 || argc > 5 || !every || inet_pton(AF_INET, argv[2], &address) != 1) {
		fprintf(stderr, "usage: pt-user-stack INTERFACE ADDRESS PORT [EVERY]\n");
		return 2;
	}
	port = htons((uint16_t)atoi(argv[3]));
	fd = open_ring(argv[1], &ring);
	puts("ready");
	fflush(stdout);
	for (unsigned int i = 0;; i = (i + 1) % FRAMES) {
		struct tpacket2_hdr *header = (struct tpacket2_hdr *)(ring + (size_t)i * FRAME);
		const unsigned char *frame;

		/* While there is nothing to do, other tasks on the core can run. */
		while (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
			sched_yield();
		frame = (const unsigned char *)header + header->tp_mac;
		if (is_ours((const struct packet *)frame, header->tp_snaplen, address.s_addr,
			    port)) {
			n_requests++;
			serve(fd, frame, header->tp_snaplen, n_requests % every == 0);
		}
		__atomic_store_n(&header->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
	}
}
