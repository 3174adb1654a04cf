// SPDX-License-Identifier: GPL-2.0-only
/*
 * HTTP/2: RFC 9113; header fields: RFC 7541. gRPC is the same.
 *
 * A message is what one side sends on a stream, from its first HEADERS frame to the frame that ends
 * the stream in that direction. Frames of other streams may lie between: messages overlap. Of the
 * header fields only the first is read, the method or status, unless it comes from the table that
 * the connection builds up.
 */
#include "framing.h"
#include "util.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_MAX      256
#define OPEN_ALL      (1u << 18)
#define HEADER	      9
#define PREFACE	      24
#define FRAGMENT_KEPT 8

enum {
	DATA,
	HEADERS,
	PRIORITY,
	RST_STREAM,
	SETTINGS,
	PUSH_PROMISE,
	PING,
	GOAWAY,
	WINDOW_UPDATE,
	CONTINUATION,
	LAST_TYPE = 0x10
};
enum { END_STREAM = 0x1, END_HEADERS = 0x4, PADDED = 0x8, HAS_PRIORITY = 0x20 };
enum { FRAME, FRAGMENT };

struct open_stream {
	uint32_t id;
	bool ends;	    /* its headers set END_STREAM, and continue */
	char type[8];	    /* method or status */
	uint64_t at, bytes; /* where it began; its length */
};

static unsigned int n_open_all;

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

static bool is_frame(const uint8_t *p)
{
	uint32_t len = be32(p) >> 8, id = be32(p + 5);
	static const struct {
		bool of_stream, of_connection;
		uint8_t len; /* 0: any */
	} rules[] = {
		[DATA] = {.of_stream = true},
		[HEADERS] = {.of_stream = true},
		[PRIORITY] = {true, false, 5},
		[RST_STREAM] = {true, false, 4},
		[SETTINGS] = {.of_connection = true},
		[PUSH_PROMISE] = {.of_stream = true},
		[PING] = {false, true, 8},
		[GOAWAY] = {.of_connection = true},
		[WINDOW_UPDATE] = {false, false, 4},
		[CONTINUATION] = {.of_stream = true},
	};
	uint8_t type = p[3];

	if (id >> 31 || type > LAST_TYPE)
		return false;
	if (type > CONTINUATION)
		return true;
	return !(rules[type].of_stream && !id) && !(rules[type].of_connection && id) &&
	       (!rules[type].len || rules[type].len == len);
}

static bool plausible(enum role role, const uint8_t *p, size_t n)
{
	if (role == ROLE_CLIENT && n >= PREFACE &&
	    !memcmp(p, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", PREFACE))
		return true;
	return n >= HEADER && is_frame(p);
}

static struct open_stream *find(struct parser *x, uint32_t id)
{
	for (unsigned int i = x->n_open; i--;)
		if (x->open[i].id == id)
			return &x->open[i];
	return NULL;
}

/* NULL: too many streams are open. */
static struct open_stream *add(struct parser *x, uint32_t id)
{
	if (x->n_open == OPEN_MAX || n_open_all == OPEN_ALL) {
		counts.streams_refused++;
		return NULL;
	}
	if (x->n_open == x->cap_open) {
		x->cap_open = x->cap_open ? 2 * x->cap_open : 4;
		x->open = xrealloc(x->open, x->cap_open, sizeof(*x->open));
	}
	n_open_all++;
	x->open[x->n_open] = (struct open_stream){.id = id, .at = x->begin};
	return &x->open[x->n_open++];
}

static void drop(struct parser *x, struct open_stream *s)
{
	*s = x->open[--x->n_open];
	n_open_all--;
}

static void forget(struct parser *x)
{
	n_open_all -= x->n_open;
	free(x->open);
	x->open = NULL;
	x->n_open = x->cap_open = 0;
}

/* n bytes of the frame are left; with them a message ends if ended is set. */
static enum verdict rest(struct parser *x, struct open_stream *ended, uint64_t n)
{
	x->silent = !ended;
	if (ended) {
		x->begin = ended->at;
		x->n_bytes = ended->bytes;
		x->key = ended->id;
		if (!ended->type[0])
			strcpy(ended->type, "other");
		set_type(x, ended->type, strlen(ended->type), false);
		drop(x, ended);
	}
	x->skip = n;
	x->last_skip = true;
	return n ? MORE : DONE;
}

/* The stream has ended in both directions; an open message on it never ends. */
static void reset(struct parser *x, uint32_t id)
{
	struct parser *const sides[] = {x, x->peer};
	struct open_stream *s;

	for (int i = 0; i < 2; i++) {
		s = sides[i] ? find(sides[i], id) : NULL;
		if (!s)
			continue;
		counts.unfinished++;
		drop(sides[i], s);
	}
}

static enum verdict frame(struct parser *x)
{
	const uint8_t *p = (const uint8_t *)x->line;
	uint32_t len = be32(p) >> 8, id = be32(p + 5);
	uint8_t type = p[3], flags = p[4];
	struct open_stream *s = find(x, id);
	bool ended;

	if (type == RST_STREAM)
		reset(x, id);
	if (type != HEADERS && type != DATA && type != CONTINUATION)
		return rest(x, NULL, len);
	if (!s && type == HEADERS)
		s = add(x, id);
	if (!s) /* begun before the recording, or refused */
		return rest(x, NULL, len);
	s->bytes += HEADER + len;
	s->ends |= type != CONTINUATION && flags & END_STREAM;
	ended = s->ends && (type == DATA || flags & END_HEADERS);
	if (type != HEADERS || !len)
		return rest(x, ended ? s : NULL, len);
	x->state = FRAGMENT;
	x->key = id;
	x->ends = ended;
	x->todo[0] = len;
	x->todo[1] = (flags & PADDED ? 1 : 0) + (flags & HAS_PRIORITY ? 5 : 0);
	line_reset(x);
	return MORE;
}

/* Decodes digits in Huffman code: 0 to 2 have five bits, the others six. */
static bool huffman_digits(const uint8_t *p, size_t n, char *text)
{
	uint32_t bits = 0;
	int have = 0;

	for (int i = 0; i < 3; i++) {
		for (; have < 6 && n; n--, have += 8)
			bits = bits << 8 | *p++;
		if (have >= 5 && (bits >> (have - 5) & 0x1f) < 3) {
			text[i] = '0' + (bits >> (have - 5) & 0x1f);
			have -= 5;
		} else if (have >= 6 && (bits >> (have - 6) & 0x3f) - 0x19 < 7) {
			text[i] = '3' + ((bits >> (have - 6) & 0x3f) - 0x19);
			have -= 6;
		} else {
			return false;
		}
	}
	return true;
}

/* The method or status at the start of the header fields; false: it is not there. */
static bool type_of(const uint8_t *p, size_t n, char *type)
{
	static const char *const words[] = {
		[2] = "GET",  [3] = "POST", [8] = "200",  [9] = "204", [10] = "206",
		[11] = "304", [12] = "400", [13] = "404", [14] = "500"};
	uint8_t name;

	if (n && *p >= 0x20 && *p < 0x3f) { /* update of the table size */
		p++;
		n--;
	}
	for (; n && *p & 0x80; p++, n--) {
		uint8_t number = *p & 0x7f;

		if (number < sizeof(words) / sizeof(words[0]) && words[number]) {
			strcpy(type, words[number]);
			return true;
		}
	}
	if (n < 3)
		return false;
	name = *p & 0x40 ? *p & 0x3f : *p & 0x0f;
	type[3] = 0;
	if (name >= 8 && name <= 14 && p[1] == 3 && n >= 5) {
		memcpy(type, p + 2, 3);
		return strspn(type, "0123456789") == 3;
	}
	return name >= 8 && name <= 14 && p[1] > 0x80 && p[1] <= 0x83 && n >= 2u + (p[1] & 0x7f) &&
	       huffman_digits(p + 2, p[1] & 0x7f, type);
}

/* The start of header fields, byte by byte. */
static enum verdict fragment(struct parser *x, uint8_t c)
{
	struct open_stream *s = find(x, x->key);
	char type[8] = "";

	x->todo[0]--;
	if (x->todo[1])
		x->todo[1]--;
	else
		x->line[x->line_len++] = c;
	if (x->todo[0] && x->line_len < FRAGMENT_KEPT)
		return MORE;
	/* The final reply follows an interim one; trailers have no method or status. */
	if (s && type_of((const uint8_t *)x->line, x->line_len, type) &&
	    (!s->type[0] || s->type[0] == '1'))
		memcpy(s->type, type, sizeof(type));
	return rest(x, x->ends ? s : NULL, x->todo[0]);
}

static enum verdict byte(struct parser *x, uint8_t c)
{
	if (!x->in_message) {
		line_reset(x);
		x->state = FRAME;
	}
	if (x->state == FRAGMENT)
		return fragment(x, c);
	x->line[x->line_len++] = c;
	if (x->line_len < HEADER)
		return MORE;
	if (x->role == ROLE_CLIENT && !memcmp(x->line, "PRI * HTT", HEADER))
		return rest(x, NULL, PREFACE - HEADER);
	return is_frame((const uint8_t *)x->line) ? frame(x) : WRONG;
}

const struct protocol http2 = {"http2", plausible, byte, forget};
