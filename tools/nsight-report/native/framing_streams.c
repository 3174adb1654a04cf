// SPDX-License-Identifier: GPL-2.0-only
/*
 * Turns TCP segments into byte streams, and byte streams into messages: in sequence order, each
 * byte once. Missing data is waited for until too much has piled up behind it; then it is a hole. A
 * parser that was skipping over that place is not affected. Otherwise the stream is picked up again
 * at the next segment with which a message can begin.
 */
#include "framing_connections.h"
#include "util.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PENDING_SEGMENTS 256
#define PENDING_BYTES	 (1u << 20)
#define PENDING_ALL	 (64u << 20)
#define WINDOW		 (1 << 30) /* no TCP window is larger */

struct streams *streams_new(const struct protocol *protocol, FILE *out, uint16_t server_port)
{
	struct streams *all = xrealloc(NULL, 1, sizeof(*all));

	memset(all, 0, sizeof(*all));
	all->last = &all->first;
	all->protocol = protocol;
	all->out = out;
	all->server_port = server_port;
	return all;
}

/* C id src sport dst dport base syn */
static void name_stream(struct streams *all, struct connection *c, int end)
{
	struct direction *d = &c->dir[end];

	d->named = true;
	d->id = all->n_ids++;
	fprintf(all->out, "C\t%" PRIu32 "\t", d->id);
	for (int other = 0; other < 2; other++) {
		for (int i = 0; i < c->family; i++)
			fprintf(all->out, "%02x", c->addr[end ^ other][i]);
		fprintf(all->out, "\t%u\t", c->port[end ^ other]);
	}
	fprintf(all->out, "%" PRIu32 "\t%d\n", d->base, d->syn_seen);
}

static void message_reset(struct parser *x)
{
	x->in_message = x->last_skip = x->until_close = x->silent = false;
	x->skip = x->n_bytes = 0;
	x->type[0] = 0;
}

/* M id offset length type key bytes - */
static void message_done(struct streams *all, struct connection *c, int end)
{
	struct direction *d = &c->dir[end];
	struct parser *x = d->parser;
	uint64_t n = d->next - x->begin;

	if (!x->silent) {
		if (!d->named)
			name_stream(all, c, end);
		fprintf(all->out,
			"M\t%" PRIu32 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t%" PRIu32 "\t%" PRIu64
			"\t\n",
			d->id, x->begin, n, x->type, x->key, x->n_bytes ? x->n_bytes : n);
	}
	message_reset(x);
}

static void forget(struct streams *all, struct parser *x)
{
	counts.unfinished += x->n_open;
	if (all->protocol->forget)
		all->protocol->forget(x);
}

static void lose_track(struct streams *all, struct direction *d)
{
	if (!d->syncing)
		counts.resyncs++;
	d->syncing = true;
	message_reset(d->parser);
	forget(all, d->parser);
}

/* Parse bytes in order, all from one segment. */
static void feed(struct streams *all, struct connection *c, int end, const uint8_t *p, size_t n)
{
	struct direction *d = &c->dir[end];
	struct parser *x = d->parser;
	const uint8_t *stop = p + n;
	enum verdict v;

	if (x && d->syncing && n && all->protocol->plausible(x->role, p, n))
		d->syncing = false;
	while (p < stop) {
		if (!x || x->stopped || d->syncing) {
			counts.skipped_bytes += stop - p;
			d->next += stop - p;
			return;
		}
		if (x->skip) {
			uint64_t left = stop - p, take = x->skip < left ? x->skip : left;

			x->skip -= take;
			d->next += take;
			p += take;
			if (!x->skip && x->last_skip)
				message_done(all, c, end);
			continue;
		}
		if (!x->in_message)
			x->begin = d->next;
		v = all->protocol->byte(x, *p++);
		x->in_message = true;
		d->next++;
		if (v == DONE)
			message_done(all, c, end);
		else if (v == WRONG)
			lose_track(all, d);
	}
}

static void hole(struct streams *all, struct connection *c, int end, uint64_t n)
{
	struct direction *d = &c->dir[end];
	struct parser *x = d->parser;

	d->next += n;
	if (!x || x->stopped || d->syncing)
		return;
	counts.holes++;
	counts.hole_bytes += n;
	if (x->skip < n) {
		lose_track(all, d);
		return;
	}
	x->skip -= n;
	if (!x->skip && x->last_skip)
		message_done(all, c, end);
}

static void deliver(struct streams *all, struct connection *c, int end, const uint8_t *p,
		    uint32_t caplen, uint32_t len)
{
	feed(all, c, end, p, caplen);
	if (len > caplen) /* the recorder truncated the packet */
		hole(all, c, end, len - caplen);
}

/* Deliver data that is now in order; with force, jump over holes. */
static void drain(struct streams *all, struct connection *c, int end, bool force)
{
	struct direction *d = &c->dir[end];
	struct pending *q;
	uint64_t drop;

	while ((q = d->pending) && (force || q->offset <= d->next)) {
		d->pending = q->next;
		d->n_pending--;
		d->pending_bytes -= q->caplen;
		all->pending_bytes -= q->caplen;
		if (q->offset > d->next) {
			hole(all, c, end, q->offset - d->next);
			force = false;
		}
		drop = d->next - q->offset;
		if (drop < q->len) {
			uint32_t cut = drop < q->caplen ? drop : q->caplen;

			deliver(all, c, end, q->data + cut, q->caplen - cut, q->len - drop);
		}
		free(q);
	}
}

static void store(struct streams *all, struct direction *d, const struct segment *s,
		  uint64_t offset)
{
	struct pending **at = &d->pending, *q;

	while (*at && (*at)->offset < offset)
		at = &(*at)->next;
	if (*at && (*at)->offset == offset && (*at)->len >= s->len) {
		counts.duplicate_bytes += s->len;
		return;
	}
	q = xrealloc(NULL, 1, sizeof(*q) + s->caplen);
	q->offset = offset;
	q->len = s->len;
	q->caplen = s->caplen;
	memcpy(q->data, s->payload, s->caplen);
	q->next = *at;
	*at = q;
	d->n_pending++;
	d->pending_bytes += s->caplen;
	all->pending_bytes += s->caplen;
}

static void data(struct streams *all, struct connection *c, int end, const struct segment *s)
{
	struct direction *d = &c->dir[end];
	int32_t ahead = (int32_t)(s->seq - (uint32_t)(d->base + d->next));
	uint64_t back;

	if (ahead > WINDOW) {
		counts.skipped_bytes += s->len; /* belongs to another connection */
		return;
	}
	if (ahead > 0) {
		store(all, d, s, d->next + ahead);
		if (d->n_pending > PENDING_SEGMENTS || d->pending_bytes > PENDING_BYTES ||
		    all->pending_bytes > PENDING_ALL)
			drain(all, c, end, true);
		return;
	}
	back = -(int64_t)ahead;
	if (back >= s->len) {
		counts.duplicate_bytes += s->len;
		return;
	}
	counts.duplicate_bytes += back;
	if (back < s->caplen)
		deliver(all, c, end, s->payload + back, s->caplen - back, s->len - back);
	else
		hole(all, c, end, s->len - back);
	drain(all, c, end, false);
}

static void finish_direction(struct streams *all, struct connection *c, int end)
{
	struct direction *d = &c->dir[end];

	while (d->pending)
		drain(all, c, end, true);
	if (!d->parser)
		return;
	if (d->parser->in_message && d->parser->until_close && d->fin)
		message_done(all, c, end);
	else if (d->parser->in_message)
		counts.unfinished++;
	forget(all, d->parser);
}

static void finish(struct streams *all, struct connection *c)
{
	for (int end = 0; end < 2; end++)
		finish_direction(all, c, end);
	for (int end = 0; end < 2; end++) {
		free(c->dir[end].parser);
		memset(&c->dir[end], 0, sizeof(c->dir[end]));
	}
}

static void start(struct streams *all, struct connection *c, int end, const struct segment *s)
{
	struct direction *d = &c->dir[end];
	struct parser *peer = c->dir[!end].parser;
	bool syn = s->flags & TH_SYN;
	enum role role;

	d->started = true;
	d->syn_seen = syn;
	d->syncing = !syn;
	d->base = s->seq + syn;
	d->parser = xrealloc(NULL, 1, sizeof(*d->parser));
	memset(d->parser, 0, sizeof(*d->parser));
	if (syn)
		role = s->flags & TH_ACK ? ROLE_SERVER : ROLE_CLIENT;
	else if (c->dir[!end].started)
		role = peer && peer->role == ROLE_SERVER ? ROLE_CLIENT : ROLE_SERVER;
	else if (all->server_port && s->sport == all->server_port)
		role = ROLE_SERVER;
	else if (all->server_port && s->dport == all->server_port)
		role = ROLE_CLIENT;
	else /* assume that the server has the lower port */
		role = s->sport < s->dport ? ROLE_SERVER : ROLE_CLIENT;
	d->parser->role = role;
	d->parser->peer = peer;
	if (peer)
		peer->peer = d->parser;
}

void streams_add(struct streams *all, const struct segment *s)
{
	struct connection *c;
	struct direction *d;
	int end;

	if (!s->len && !(s->flags & (TH_SYN | TH_FIN | TH_RST)))
		return;
	c = connection_of(all, s, &end);
	if (!c)
		return;
	d = &c->dir[end];
	if (s->flags & TH_SYN) {
		bool again = d->started && d->syn_seen && d->base == s->seq + 1;
		bool answer = (s->flags & TH_ACK) && !d->started && c->dir[!end].syn_seen;

		/* The addresses are reused. */
		if (!again && !answer && (d->started || c->dir[!end].started))
			finish(all, c);
	}
	if (!d->started && (s->len || s->flags & TH_SYN))
		start(all, c, end, s);
	if (s->len && !(s->flags & TH_SYN)) /* data on a SYN would need TCP Fast Open */
		data(all, c, end, s);
	if (s->flags & (TH_FIN | TH_RST))
		d->fin = true;
}

void streams_finish(struct streams *all)
{
	while (all->first) {
		struct connection *c = all->first;

		all->first = c->later;
		finish(all, c);
		free(c);
	}
	free(all);
}
