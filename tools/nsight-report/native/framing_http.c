// SPDX-License-Identifier: GPL-2.0-only
/* HTTP/1.0 and 1.1: RFC 9112. */
#include "framing.h"
#include "util.h"

#include <string.h>
#include <strings.h>

#define HEAD_MAX     (1u << 20)
#define REQUESTS_MAX 64

enum { START_LINE, HEADER, CHUNK_SIZE, CHUNK_END, TRAILER };

static bool is_method(const char *p, size_t n)
{
	static const char *const methods[] = {"GET",	 "HEAD",    "POST",  "PUT",  "DELETE",
					      "CONNECT", "OPTIONS", "TRACE", "PATCH"};

	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
		if (strlen(methods[i]) == n && !memcmp(methods[i], p, n))
			return true;
	return false;
}

static bool plausible(enum role role, const uint8_t *p, size_t n)
{
	const uint8_t *space = memchr(p, ' ', n < 16 ? n : 16);

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
	if (x->line_len >= 8 && !memcmp(x->line, "HTTP/1.", 7)) {
		word = line_word(x, 1, &n);
		if (!word || n != 3 || !parse_u64(word, n, &status) || status < 100)
			return WRONG;
		x->status = status;
		set_type(x, word, n, false);
	} else {
		word = line_word(x, 0, &n);
		if (!word || !is_method(word, n))
			return WRONG;
		set_type(x, word, n, false);
		/* Replies come in the order of the requests; a reply to HEAD has no body. */
		if (x->n_requests < REQUESTS_MAX) {
			uint64_t bit = n == 4 && !memcmp(word, "HEAD", 4);

			x->head_bits &= ~(1ull << x->n_requests);
			x->head_bits |= bit << x->n_requests;
			x->n_requests++;
		}
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

/* A reply has begun: was its request a HEAD? */
static bool answers_head(struct parser *x)
{
	struct parser *peer = x->peer;
	bool head;

	if (!peer || !peer->n_requests)
		return false;
	head = peer->head_bits & 1;
	peer->head_bits >>= 1;
	peer->n_requests--;
	return head;
}

static enum verdict head_done(struct parser *x)
{
	if (x->status == 101) {
		x->stopped = true; /* another protocol follows */
		return DONE;
	}
	if (x->status && x->status < 200)
		return DONE; /* interim: the final reply follows */
	if (x->status && (answers_head(x) || x->status == 204 || x->status == 304))
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
