// SPDX-License-Identifier: GPL-2.0-only
/* HTTP/1.0 and 1.1: RFC 9112. */
#include "framing.h"
#include "util.h"

#include <string.h>
#include <strings.h>

#define HEAD_MAX   (1u << 20)
#define METHOD_MAX 23

enum { START_LINE, HEADER, CHUNK_SIZE, CHUNK_END, TRAILER };

/* Any word in upper case: WebDAV, caches and others have methods of their own. */
static bool is_method(const char *p, size_t n)
{
	size_t len = 0;

	while (len < n && ((p[len] >= 'A' && p[len] <= 'Z') || p[len] == '-' || p[len] == '_'))
		len++;
	return n && n <= METHOD_MAX && len == n;
}

/* Reply number n_requests will have no body, or is followed by another protocol. */
static bool remember(struct parser *x, bool connect)
{
	if (x->n_special == SPECIAL_MAX)
		return false;
	x->special[x->n_special].number = x->n_requests;
	x->special[x->n_special++].connect = connect;
	return true;
}

static bool plausible(enum role role, const uint8_t *p, size_t n)
{
	const uint8_t *space = memchr(p, ' ', n < METHOD_MAX + 1 ? n : METHOD_MAX + 1);

	(void)role;
	if (n >= 8 && !memcmp(p, "HTTP/1.", 7))
		return true;
	return space && is_method((const char *)p, space - p);
}

static enum verdict start_line(struct parser *x)
{
	uint64_t status;
	const char *word;
	size_t n;

	x->chunked = x->has_length = false;
	x->content_length = 0;
	x->status = 0;
	if (!x->line_len && x->role == ROLE_CLIENT) { /* to be ignored: RFC 9112, 2.2 */
		set_type(x, "empty", 5, false);
		return DONE;
	}
	if (x->line_len >= 8 && !memcmp(x->line, "HTTP/1.", 7)) {
		word = line_word(x, 1, &n);
		if (!word || n != 3 || !parse_u64(word, n, &status) || status < 100)
			return WRONG;
		x->status = status;
		set_type(x, word, n, false);
	} else {
		const char *version = line_word(x, 2, &n);

		/* The end of a long line is not kept. */
		if (x->line_len <= LINE_KEPT &&
		    (!version || n < 7 || memcmp(version, "HTTP/1.", 7)))
			return WRONG;
		word = line_word(x, 0, &n);
		if (!word || !is_method(word, n))
			return WRONG;
		set_type(x, word, n, false);
		if (n == 4 && !memcmp(word, "HEAD", 4) && !remember(x, false))
			return WRONG;
		if (n == 7 && !memcmp(word, "CONNECT", 7) && !remember(x, true))
			return WRONG;
		x->n_requests++;
		x->n_waiting++;
	}
	x->state = HEADER;
	return MORE;
}

static bool header_is(const struct parser *x, const char *name, const char **value, size_t *n)
{
	size_t len = strlen(name), kept = x->line_len < LINE_KEPT ? x->line_len : LINE_KEPT;

	if (kept <= len || strncasecmp(x->line, name, len) || x->line[len] != ':')
		return false;
	*value = x->line + len + 1;
	*n = kept - len - 1;
	while (*n && (**value == ' ' || **value == '\t')) {
		(*value)++;
		(*n)--;
	}
	while (*n && ((*value)[*n - 1] == ' ' || (*value)[*n - 1] == '\t'))
		(*n)--;
	return true;
}

enum { ANY, HEAD, CONNECT };

/* A final reply has begun: what was its request? Replies come in the order of the requests. */
static int answered(struct parser *x)
{
	struct parser *peer = x->peer;
	uint64_t number;
	int method;

	if (!peer || !peer->n_waiting)
		return ANY;
	number = peer->n_requests - peer->n_waiting--;
	if (!peer->n_special || peer->special[0].number != number)
		return ANY;
	method = peer->special[0].connect ? CONNECT : HEAD;
	memmove(peer->special, peer->special + 1, --peer->n_special * sizeof(peer->special[0]));
	return method;
}

/* Another protocol follows, in both directions. */
static enum verdict stop(struct parser *x)
{
	x->stopped = true;
	if (x->peer)
		x->peer->stopped = true;
	return DONE;
}

static enum verdict head_done(struct parser *x)
{
	int method;

	if (x->status == 101)
		return stop(x);
	if (x->status && x->status < 200)
		return DONE; /* interim: the final reply follows */
	method = x->status ? answered(x) : ANY;
	if (method == CONNECT && x->status < 300)
		return stop(x);
	if (x->status && (method == HEAD || x->status == 204 || x->status == 304))
		return DONE;
	if (x->chunked) {
		x->state = CHUNK_SIZE;
		return MORE;
	}
	if (x->has_length) {
		x->skip = x->content_length;
		x->last_skip = true;
		return x->skip ? MORE : DONE;
	}
	if (!x->status)
		return DONE;
	/* The body ends with the connection. */
	x->until_close = true;
	x->skip = UINT64_MAX;
	x->last_skip = true;
	return MORE;
}

static enum verdict header_line(struct parser *x)
{
	const char *value;
	uint64_t length;
	size_t n;

	if (!x->line_len)
		return head_done(x);
	if (header_is(x, "Content-Length", &value, &n)) {
		if (!parse_u64(value, n, &length) || (x->has_length && length != x->content_length))
			return WRONG;
		x->has_length = true;
		x->content_length = length;
	} else if (header_is(x, "Transfer-Encoding", &value, &n)) {
		/* chunked is always the last coding */
		x->chunked = n >= 7 && !strncasecmp(value + n - 7, "chunked", 7);
	}
	return MORE;
}

static enum verdict chunk_size(struct parser *x)
{
	uint64_t size = 0;
	size_t i, n = x->line_len < LINE_KEPT ? x->line_len : LINE_KEPT;

	for (i = 0; i < n && i < 15; i++) {
		char c = x->line[i];

		if (c >= '0' && c <= '9')
			size = size << 4 | (c - '0');
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			size = size << 4 | ((c | 32) - 'a' + 10);
		else
			break;
	}
	if (!i || (i < n && x->line[i] != ';' && x->line[i] != ' '))
		return WRONG;
	if (!size) {
		x->state = TRAILER;
		return MORE;
	}
	x->skip = size;
	x->last_skip = false;
	x->state = CHUNK_END;
	return MORE;
}

static enum verdict one_line(struct parser *x)
{
	switch (x->state) {
	case START_LINE:
		return start_line(x);
	case HEADER:
		return header_line(x);
	case CHUNK_SIZE:
		return chunk_size(x);
	case CHUNK_END:
		x->state = CHUNK_SIZE;
		return x->line_len ? WRONG : MORE;
	default:
		return x->line_len ? MORE : DONE;
	}
}

static enum verdict byte(struct parser *x, uint8_t c)
{
	enum verdict v;

	if (!x->in_message) {
		line_reset(x);
		x->head_len = 0;
		x->state = START_LINE;
	}
	if (++x->head_len > HEAD_MAX)
		return WRONG;
	if (!line_byte(x, c))
		return MORE;
	v = one_line(x);
	line_reset(x);
	if (x->skip) /* the limit applies to heads and chunk headers, not to bodies */
		x->head_len = 0;
	return v;
}

const struct protocol http = {"http", plausible, byte, NULL};
