// SPDX-License-Identifier: GPL-2.0-only
/* Redis serialization protocol, versions 2 and 3, and inline commands. */
#include "framing.h"
#include "util.h"

#include <string.h>

#define LINE_MAX_LEN (64u << 10) /* for inline commands and simple strings */
#define ELEMENTS_MAX (1u << 20)
#define BULK_MAX     (1u << 30)
#define COMMAND_KEPT 23

enum { VALUE, COMMAND };

static bool plausible(enum role role, const uint8_t *p, size_t n)
{
	if (role == ROLE_CLIENT && p[0] != '*')
		return n >= 6 && memchr(p, '\n', n) && ((p[0] | 32) >= 'a' && (p[0] | 32) <= 'z');
	if (n < 3 || !p[0] || !strchr("*$+-:_,#(!=%~>|", p[0]))
		return false;
	/* Except for +text and -text, a number follows, or nothing after '_'. */
	return strchr("+-_,#(", p[0]) || p[1] == '-' || (p[1] >= '0' && p[1] <= '9');
}

/* One element is complete, and possibly the elements that contain it. */
static enum verdict element_done(struct parser *x)
{
	while (x->depth && !--x->todo[x->depth - 1])
		x->depth--;
	if (x->depth)
		return MORE;
	return DONE;
}

static enum verdict aggregate(struct parser *x, uint64_t n, bool attribute)
{
	/* An attribute comes before the value it belongs to. */
	if (attribute)
		n++;
	if (!n)
		return element_done(x);
	if (x->depth == NEST_MAX || n > ELEMENTS_MAX)
		return WRONG;
	x->todo[x->depth++] = n;
	return MORE;
}

static enum verdict bulk(struct parser *x, uint64_t n)
{
	enum verdict v;

	if (n > BULK_MAX)
		return WRONG;
	/* The first string of a request is the command: its bytes are parsed. */
	if (x->role == ROLE_CLIENT && !x->type[0] && n && n <= COMMAND_KEPT) {
		x->state = COMMAND;
		return MORE;
	}
	v = element_done(x);
	x->skip = n + 2;
	x->last_skip = v == DONE;
	return MORE;
}

static const char *reply_type(char c)
{
	switch (c) {
	case '+':
		return "status";
	case '-':
		return "error";
	case ':':
		return "integer";
	case '$':
		return "bulk";
	case '*':
		return "array";
	case '>':
		return "push";
	default:
		return "other";
	}
}

static enum verdict line(struct parser *x)
{
	const char *text = x->line + 1;
	size_t n = x->line_len ? x->line_len - 1 : 0;
	char c = x->line[0];
	uint64_t value = 0;
	bool null;

	if (!x->line_len) { /* an inline command without words; in a reply it would be an error */
		set_type(x, "empty", 5, false);
		return x->role == ROLE_CLIENT ? DONE : WRONG;
	}
	if (x->line_len > sizeof(x->line))
		n = sizeof(x->line) - 1;
	if (x->role == ROLE_CLIENT && !x->depth && c != '*') {
		const char *word = line_word(x, 0, &n);

		set_type(x, word ? word : "", word ? n : 0, true);
		return DONE;
	}
	if (x->role != ROLE_CLIENT && !x->type[0])
		set_type(x, reply_type(c), strlen(reply_type(c)), false);
	switch (c) {
	case '+':
	case '-':
	case ':':
	case '_':
	case ',':
	case '#':
	case '(':
		return element_done(x);
	}
	null = n == 2 && !memcmp(text, "-1", 2);
	if (!null && !parse_u64(text, n, &value))
		return WRONG;
	if (x->role == ROLE_CLIENT && !x->depth && (null || !value))
		set_type(x, "empty", 5, false);
	switch (c) {
	case '$':
	case '!':
	case '=':
		return null ? element_done(x) : bulk(x, value);
	case '*':
	case '~':
	case '>':
		return null ? element_done(x) : aggregate(x, value, false);
	case '%':
	case '|':
		if (null || value > ELEMENTS_MAX)
			return WRONG;
		return aggregate(x, value * 2, c == '|');
	}
	return WRONG;
}

static enum verdict byte(struct parser *x, uint8_t c)
{
	enum verdict v;
	size_t n;

	if (!x->in_message) {
		x->depth = 0;
		x->state = VALUE;
		line_reset(x);
	}
	if (x->line_len > LINE_MAX_LEN)
		return WRONG;
	if (!line_byte(x, c))
		return MORE;
	if (x->state == COMMAND) {
		n = x->line_len < sizeof(x->line) ? x->line_len : sizeof(x->line);
		set_type(x, x->line, n, true);
		x->state = VALUE;
		v = element_done(x);
	} else {
		v = line(x);
	}
	line_reset(x);
	return v;
}

const struct protocol redis = {"redis", plausible, byte, NULL};
