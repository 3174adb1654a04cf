// SPDX-License-Identifier: GPL-2.0-only
/* Redis serialization protocol, versions 2 and 3, and inline commands. */
#include "framing.h"
#include "util.h"

#include <string.h>
#include <strings.h>

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

static bool is_word(const char *word, const char *text, size_t n)
{
	return n == strlen(word) && !strncasecmp(text, word, n);
}

/* Adds to the type that no reply follows. */
static void unanswered(struct parser *x)
{
	char type[sizeof(x->type)];
	int n = snprintf(type, sizeof(type), "%.15s-noreply", x->type);

	set_type(x, type, n, false);
}

/*
 * The next word of a request: of the command, or of CLIENT's arguments. CLIENT REPLY OFF turns
 * replies off, its own too; SKIP does so for itself and the next command; ON has a reply (redis,
 * src/networking.c: clientCommand, prepareClientToWrite, resetClient).
 */
static void request_word(struct parser *x, const char *text, size_t n, bool last)
{
	unsigned int number = x->n_words++;

	if (!number) {
		x->of_reply = false;
		set_type(x, text, n, true);
		if (is_word("RESET", text, n)) {
			x->replies = REPLIES_ALL;
			x->in_multi = false;
		}
		if (is_word("MULTI", text, n))
			x->in_multi = true;
		if (is_word("EXEC", text, n) || is_word("DISCARD", text, n))
			x->in_multi = false;
		/* Subscriptions are confirmed in any case. */
		if (x->replies != REPLIES_ALL &&
		    (n < 9 || strncasecmp(text + n - 9, "SUBSCRIBE", 9)))
			unanswered(x);
		if (x->replies == REPLIES_SKIP_NEXT)
			x->replies = REPLIES_ALL;
		return;
	}
	if (number == 1)
		x->of_reply = is_word("REPLY", text, n) && !last;
	if (number != 2 || !x->of_reply || !last)
		return;
	if (x->in_multi) /* EXEC changes the setting in the middle of its own reply */
		x->stopped = true;
	if (is_word("ON", text, n)) {
		x->replies = REPLIES_ALL;
		set_type(x, "CLIENT-reply-on", 15, false);
		return;
	}
	if (is_word("OFF", text, n))
		x->replies = REPLIES_OFF;
	else if (!is_word("SKIP", text, n))
		return;
	else if (x->replies != REPLIES_OFF)
		x->replies = REPLIES_SKIP_NEXT;
	set_type(x, "CLIENT-noreply", 14, false);
}

static bool of_client(const struct parser *x)
{
	return !strcmp(x->type, "CLIENT") || !strcmp(x->type, "CLIENT-noreply");
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
	/* The first string of a request is the command: its bytes are parsed, as are CLIENT's
	 * arguments. */
	if (x->role == ROLE_CLIENT && n && n <= COMMAND_KEPT &&
	    (!x->type[0] || (x->depth == 1 && x->n_words < 3 && of_client(x)))) {
		x->state = COMMAND;
		return MORE;
	}
	if (x->depth == 1 && x->type[0])
		x->n_words++;
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
		const char *word = line_word(x, 0, &n), *next;
		size_t next_n;

		for (int i = 1; word && i <= 3; i++, word = next, n = next_n) {
			next = line_word(x, i, &next_n);
			if (i == 1 || of_client(x))
				request_word(x, word, n, !next);
		}
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
		x->n_words = 0;
		line_reset(x);
	}
	if (x->line_len > LINE_MAX_LEN)
		return WRONG;
	if (!line_byte(x, c))
		return MORE;
	if (x->state == COMMAND) {
		n = x->line_len < sizeof(x->line) ? x->line_len : sizeof(x->line);
		request_word(x, x->line, n, x->depth == 1 && x->todo[0] == 1);
		x->state = VALUE;
		v = element_done(x);
	} else {
		v = line(x);
	}
	line_reset(x);
	return v;
}

/* What was skipped may have been the command whose reply is left out. */
static void forget(struct parser *x)
{
	if (x->replies == REPLIES_SKIP_NEXT)
		x->replies = REPLIES_ALL;
}

const struct protocol redis = {"redis", plausible, byte, forget};
