// SPDX-License-Identifier: GPL-2.0-only
#include "framing_connections.h"

#include "keyed_hash.h"
#include "util.h"

#include <string.h>

#define CONNECTIONS_MAX (1u << 18)

static uint32_t hash_ends(const struct segment *s)
{
	uint8_t from[18], to[18];

	memcpy(from, s->src, 16);
	memcpy(from + 16, &s->sport, 2);
	memcpy(to, s->dst, 16);
	memcpy(to + 16, &s->dport, 2);
	/* The same for both directions */
	return (keyed_hash(from, sizeof(from)) + keyed_hash(to, sizeof(to))) % BUCKETS;
}

static bool same_end(const struct connection *c, int end, const uint8_t *addr, uint16_t port)
{
	return c->port[end] == port && !memcmp(c->addr[end], addr, c->family);
}

struct connection *connection_of(struct streams *all, const struct segment *s, int *end)
{
	struct connection **head = &all->bucket[hash_ends(s)], *c;

	for (c = *head; c; c = c->chain) {
		if (c->family != s->family)
			continue;
		for (*end = 0; *end < 2; ++*end)
			if (same_end(c, *end, s->src, s->sport) &&
			    same_end(c, !*end, s->dst, s->dport))
				return c;
	}
	if (all->n_connections == CONNECTIONS_MAX) {
		counts.streams_refused++;
		return NULL;
	}
	all->n_connections++;
	c = xrealloc(NULL, 1, sizeof(*c));
	memset(c, 0, sizeof(*c));
	c->family = s->family;
	memcpy(c->addr[0], s->src, 16);
	memcpy(c->addr[1], s->dst, 16);
	c->port[0] = s->sport;
	c->port[1] = s->dport;
	c->chain = *head;
	*head = c;
	*all->last = c;
	all->last = &c->later;
	*end = 0;
	return c;
}
