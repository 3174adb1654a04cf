// SPDX-License-Identifier: GPL-2.0-only
/*
 * PostgreSQL's frontend/backend protocol, version 3: chapter "Frontend/Backend Protocol" of its
 * manual.
 *
 * A request is everything that a client sends up to a message that the server answers as a whole (a
 * simple query, Sync, ...). A reply is everything that is sent up to ReadyForQuery, or until it is
 * the client's turn (authentication, COPY from the client). A server's error that ends the
 * connection is a reply, too; a notification is none.
 */
#include "framing.h"
#include "util.h"

#include <string.h>

#define BODY_MAX    (1u << 30)
#define STARTUP_MAX 10000
#define WORD_KEPT   23

enum { HEAD, NAME, WORD, AUTHENTICATION };
enum { NOTHING, ASKED_SSL };

/* Codes instead of a version in messages without a type; these begin with the 0 of their length. */
enum { CANCEL = 80877102, SSL = 80877103, GSS = 80877104 };

static const char client_types[] = "BCDEFHPQSXcdfp", server_types[] = "123ACDEGHIKNRSTVWZdcnstv";

static uint32_t be32(const char *p)
{
	const uint8_t *b = (const uint8_t *)p;

	return (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

static bool plausible(enum role role, const uint8_t *p, size_t n)
{
	if (role != ROLE_CLIENT && n == 1)
		return *p == 'S' || *p == 'N';
	if (n < 5)
		return false;
	if (role == ROLE_CLIENT && !*p)
		return be32((const char *)p) <= STARTUP_MAX;
	return *p && strchr(role == ROLE_CLIENT ? client_types : server_types, *p) && !p[1] &&
	       be32((const char *)p + 1) >= 4;
}

static void name(struct parser *x, const char *type)
{
	if (!x->type[0])
		set_type(x, type, strlen(type), false);
}

/* n bytes of a protocol message are left. */
static enum verdict rest(struct parser *x, uint64_t n)
{
	line_reset(x);
	x->state = HEAD;
	if (!n)
		return x->ends ? DONE : MORE;
	x->skip = n;
	x->last_skip = x->ends;
	return MORE;
}

static enum verdict of_client(struct parser *x, char type, uint32_t n)
{
	static const struct {
		char type;
		const char *name;
	} names[] = {{'B', "EXECUTE"}, {'F', "function"}, {'X', "terminate"}, {'p', "password"},
		     {'d', "copy"},    {'c', "copy"},	  {'f', "copy"}};

	x->ends = strchr("QSFXpcf", type);
	if (strchr("QPBE", type))
		x->extended = type != 'Q';
	/* The end of COPY in the extended protocol is answered after the Sync behind it. */
	if ((type == 'c' || type == 'f') && x->extended)
		x->ends = false;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].type == type)
			name(x, names[i].name);
	if ((type != 'Q' && type != 'P') || x->type[0] || !n) {
		if (x->ends)
			name(x, "sync");
		return rest(x, n);
	}
	x->todo[0] = n;
	x->state = type == 'Q' ? WORD : NAME;
	line_reset(x);
	return MORE;
}

static enum verdict of_server(struct parser *x, char type, uint32_t n)
{
	bool first = x->first;

	x->first = false;
	x->ends = type == 'Z' || type == 'G';
	if (type == 'A' && first) { /* what a client listens to comes at any time */
		name(x, "notification");
		x->ends = true;
		return rest(x, n);
	}
	if (type == 'W') {
		x->stopped = true; /* replication: both sides send at any time */
		return DONE;
	}
	if (type == 'E') {
		name(x, "error");
		x->until_close = true; /* unless more follows */
	}
	if (x->ends)
		name(x, type == 'Z' ? "ready" : "copy-in");
	if (type != 'R' || n < 4)
		return rest(x, n);
	x->todo[0] = n;
	x->state = AUTHENTICATION;
	line_reset(x);
	return MORE;
}

static enum verdict startup(struct parser *x)
{
	uint32_t n = be32(x->line), code = be32(x->line + 4);

	if (n < 8 || n > STARTUP_MAX)
		return WRONG;
	x->ends = true;
	x->status = code == SSL || code == GSS ? ASKED_SSL : NOTHING;
	name(x, x->status == ASKED_SSL ? "encrypt" : code == CANCEL ? "cancel" : "startup");
	return rest(x, n - 8);
}

static enum verdict head(struct parser *x)
{
	uint32_t n;

	if (x->role == ROLE_CLIENT && !x->line[0])
		return x->line_len < 8 ? MORE : startup(x);
	if (!strchr(x->role == ROLE_CLIENT ? client_types : server_types, x->line[0]) ||
	    !x->line[0])
		return WRONG;
	if (x->line_len < 5)
		return MORE;
	n = be32(x->line + 1);
	if (n < 4 || n > BODY_MAX)
		return WRONG;
	return x->role == ROLE_CLIENT ? of_client(x, x->line[0], n - 4)
				      : of_server(x, x->line[0], n - 4);
}

/* The first word of a query is its type. */
static enum verdict word(struct parser *x, uint8_t c)
{
	bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';

	if (letter && x->line_len < WORD_KEPT)
		x->line[x->line_len++] = c;
	if (--x->todo[0] && (letter || !x->line_len))
		return MORE;
	set_type(x, x->line, x->line_len, true);
	if (!x->line_len)
		name(x, "query");
	return rest(x, x->todo[0]);
}

static enum verdict authentication(struct parser *x, uint8_t c)
{
	uint32_t code;

	x->line[x->line_len++] = c;
	x->todo[0]--;
	if (x->line_len < 4)
		return MORE;
	code = be32(x->line);
	/* The client is accepted (0), or this is the server's last message on it (12): no
	 * answer. */
	x->ends = code != 0 && code != 12;
	if (x->ends)
		name(x, "authenticate");
	return rest(x, x->todo[0]);
}

static enum verdict byte(struct parser *x, uint8_t c)
{
	if (!x->in_message) {
		line_reset(x);
		x->state = HEAD;
		x->first = true;
		/* A one-letter answer says whether the connection is encrypted from here on. */
		if (x->role != ROLE_CLIENT && x->peer && x->peer->status == ASKED_SSL &&
		    (c == 'S' || c == 'G' || c == 'N')) {
			x->peer->status = NOTHING;
			x->stopped = x->peer->stopped = c != 'N';
			name(x, "encrypt");
			return DONE;
		}
	}
	switch (x->state) {
	case NAME:
		x->state = c ? NAME : WORD;
		if (--x->todo[0])
			return MORE;
		name(x, "query");
		return rest(x, 0);
	case WORD:
		return word(x, c);
	case AUTHENTICATION:
		return authentication(x, c);
	default:
		x->line[x->line_len++] = c;
		return head(x);
	}
}

const struct protocol postgres = {"postgres", plausible, byte, NULL};
