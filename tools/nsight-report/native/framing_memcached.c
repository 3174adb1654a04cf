// SPDX-License-Identifier: GPL-2.0-only
/* memcached, text and binary: doc/protocol.txt, doc/protocol-binary.txt of memcached 1.6. */
#include "framing.h"
#include "util.h"

#include <string.h>

#define LINE_MAX_LEN (1u << 20) /* a get of many keys is long; a longer line is not memcached */

enum { TEXT, BINARY };

static const char *const opcodes[] = {
	"get",	      "set",	    "add",   "replace", "delete",  "increment", "decrement",
	"quit",	      "flush",	    "getq",  "noop",	"version", "getk",	"getkq",
	"append",     "prepend",    "stat",  "setq",	"addq",	   "replaceq",	"deleteq",
	"incrementq", "decrementq", "quitq", "flushq",	"appendq", "prependq",	"verbosity",
	"touch",      "gat",	    "gatq",
};

static const char *const words[] = {
	"get",		"gets",		"gat",	     "gats",	  "set",     "add",   "replace",
	"append",	"prepend",	"cas",	     "delete",	  "incr",    "decr",  "touch",
	"mg",		"ms",		"md",	     "ma",	  "mn",	     "me",    "stats",
	"version",	"flush_all",	"quit",	     "verbosity", "VALUE",   "END",   "STORED",
	"NOT_STORED",	"EXISTS",	"NOT_FOUND", "DELETED",	  "TOUCHED", "OK",    "ERROR",
	"CLIENT_ERROR", "SERVER_ERROR", "STAT",	     "VERSION",	  "VA",	     "HD",    "EN",
	"NF",		"NS",		"EX",	     "MN",	  "ME",	     "RESET",
};

static const char *opcode_name(uint8_t opcode)
{
	if (opcode < sizeof(opcodes) / sizeof(opcodes[0]))
		return opcodes[opcode];
	return opcode >= 0x20 && opcode <= 0x22 ? "sasl" : NULL;
}

static bool is_word(const char *word, const char *text, size_t n)
{
	return strlen(word) == n && !memcmp(word, text, n);
}

static bool plausible(enum role role, const uint8_t *p, size_t n)
{
	size_t len = 0;

	(void)role;
	if (p[0] == 0x80 || p[0] == 0x81)
		return n >= 2 && opcode_name(p[1]);
	if (p[0] >= '0' && p[0] <= '9') /* reply to incr */
		return n >= 3 && memchr(p, '\r', n < 24 ? n : 24);
	while (len < n && len < 16 && p[len] != ' ' && p[len] != '\r')
		len++;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (is_word(words[i], (const char *)p, len))
			return true;
	return false;
}

/* The message ends after n more bytes. */
static enum verdict ends_after(struct parser *x, uint64_t n)
{
	x->skip = n;
	x->last_skip = true;
	return n ? MORE : DONE;
}

static enum verdict binary_byte(struct parser *x, uint8_t c)
{
	const uint8_t *h = (const uint8_t *)x->line;
	const char *name;
	uint64_t length;

	x->line[x->line_len++] = c;
	if (x->line_len < 24)
		return MORE;
	name = opcode_name(h[1]);
	if (!name)
		return WRONG;
	set_type(x, name, strlen(name), false);
	length = (uint64_t)h[8] << 24 | h[9] << 16 | h[10] << 8 | h[11];
	if (h[0] == 0x81 && h[1] == 0x10 &&
	    h[2] + h[3]) { /* one of the statistics; the last has no name */
		x->skip = length;
		x->last_skip = false;
		line_reset(x);
		return MORE;
	}
	return ends_after(x, length);
}

/* A data block and its \r\n; word i of the line is the length. */
static enum verdict data_block(struct parser *x, int i, bool last)
{
	const char *text;
	uint64_t value;
	size_t n;

	text = line_word(x, i, &n);
	if (!text || !parse_u64(text, n, &value) || value > 1u << 30)
		return WRONG;
	if (last)
		return ends_after(x, value + 2);
	x->skip = value + 2;
	x->last_skip = false;
	return MORE;
}

/* Requests that may be told not to be answered, and how many words come before that at least. */
static const struct {
	const char *word;
	int before;
} answered[] = {
	{"set", 5},  {"add", 5},  {"replace", 5}, {"append", 5}, {"prepend", 5},   {"cas", 6},
	{"incr", 3}, {"decr", 3}, {"delete", 2},  {"touch", 3},	 {"flush_all", 1}, {"verbosity", 2},
};

static const char *const meta[] = {"mg", "ms", "md", "ma"};

/* Adds to the type that no reply follows (noreply), or only sometimes (flag q of meta commands). */
static void add_answered(struct parser *x, const char *word, size_t n)
{
	const char *mark = NULL, *flag;
	char type[sizeof(x->type)];
	size_t len;

	for (size_t i = 0; i < sizeof(answered) / sizeof(answered[0]) && !mark; i++)
		if (is_word(answered[i].word, word, n))
			for (int at = answered[i].before; (flag = line_word(x, at, &len)); at++)
				if (is_word("noreply", flag, len) && !line_word(x, at + 1, &len))
					mark = "-noreply";
	for (size_t i = 0; i < sizeof(meta) / sizeof(meta[0]) && !mark; i++)
		if (is_word(meta[i], word, n))
			for (int at = i == 1 ? 3 : 2; (flag = line_word(x, at, &len)); at++)
				if (is_word("q", flag, len))
					mark = "-quiet";
	if (!mark)
		return;
	len = snprintf(type, sizeof(type), "%s%s", x->type, mark);
	set_type(x, type, len, false);
}

static enum verdict text_line(struct parser *x)
{
	static const char *const storage[] = {"set", "add", "replace", "append", "prepend", "cas"};
	size_t n;
	const char *word = line_word(x, 0, &n);

	if (!word || !n)
		return WRONG;
	if (!x->type[0]) {
		set_type(x, word, n, false);
		add_answered(x, word, n);
	}
	for (size_t i = 0; i < sizeof(storage) / sizeof(storage[0]); i++)
		if (is_word(storage[i], word, n))
			return data_block(x, 4, true);
	if (is_word("ms", word, n))
		return data_block(x, 2, true);
	if (is_word("VA", word, n))
		return data_block(x, 1, true);
	if (is_word("VALUE", word, n))
		return data_block(x, 3, false);
	/* Lists that are terminated by END */
	if (is_word("STAT", word, n) || is_word("ITEM", word, n))
		return MORE;
	return DONE;
}

static enum verdict byte(struct parser *x, uint8_t c)
{
	enum verdict v;

	if (!x->in_message) { /* also after an invalid or truncated one */
		line_reset(x);
		x->state = c == 0x80 || c == 0x81 ? BINARY : TEXT;
	}
	if (x->state == BINARY)
		return binary_byte(x, c);
	/* Keys may be UTF-8. */
	if (!c || x->line_len > LINE_MAX_LEN)
		return WRONG;
	if (!line_byte(x, c))
		return MORE;
	v = text_line(x);
	line_reset(x);
	return v;
}

const struct protocol memcached = {"memcached", plausible, byte, NULL};
