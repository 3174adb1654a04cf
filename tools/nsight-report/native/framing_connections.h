/* SPDX-License-Identifier: GPL-2.0-only */
/* The TCP connections in captured packets, and the state of both directions. */
#ifndef NSIGHT_FRAMING_CONNECTIONS_H
#define NSIGHT_FRAMING_CONNECTIONS_H

#include "framing.h"

#define BUCKETS (1u << 16)

struct pending {
	struct pending *next;
	uint64_t offset;
	uint32_t len, caplen;
	uint8_t data[];
};

struct direction {
	struct parser *parser; /* NULL: closed */
	struct pending *pending;
	uint32_t n_pending, pending_bytes;
	uint32_t base; /* sequence number of offset 0 */
	bool started, syn_seen, syncing, fin, named;
	uint32_t id;
	uint64_t next; /* offset of the next byte in order */
};

struct connection {
	struct connection *chain, *later;
	uint8_t family;
	uint8_t addr[2][16];
	uint16_t port[2];
	struct direction dir[2]; /* dir[i]: sent by end i */
};

struct streams {
	const struct protocol *protocol;
	FILE *out;
	uint16_t server_port;
	uint32_t n_connections, n_ids;
	uint64_t pending_bytes;
	struct connection *first, **last; /* in the order of their first packets */
	struct connection *bucket[BUCKETS];
};

/* The connection of the segment; *end: which end sent it. NULL if there is no room. */
struct connection *connection_of(struct streams *all, const struct segment *s, int *end);

#endif
