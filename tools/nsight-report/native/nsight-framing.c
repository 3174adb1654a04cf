// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-framing PROTOCOL PCAP [SERVER_PORT]: the boundaries of messages in captured packets.
 *
 * Writes lines of eight tab-separated fields to stdout:
 *   C id src sport dst dport base syn      one direction of one TCP connection: addresses in hex,
 *                                          sequence number of its byte 0, whether its SYN was seen
 *   M id offset length type key bytes -    one message in it, of bytes [offset, offset + length);
 * key: its HTTP/2 stream, and bytes: how many are its own; else 0 and all L cause count - - - - -
 * what was lost or refused E - - - - - - -                        the end: without it the output is
 * cut
 *
 * Exit codes: 0, 2 usage, 3 the file cannot be used, 5 writing failed.
 */
#include "framing.h"
#include "util.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct counts counts;

bool line_byte(struct parser *x, uint8_t c)
{
	if (c == '\n') {
		uint32_t kept = x->line_len < LINE_KEPT ? x->line_len : LINE_KEPT;

		if (kept == x->line_len && kept && x->line[kept - 1] == '\r')
			x->line_len--;
		return true;
	}
	if (x->line_len < LINE_KEPT)
		x->line[x->line_len] = c;
	x->line_len++;
	return false;
}

void line_reset(struct parser *x)
{
	x->line_len = 0;
}

bool parse_u64(const char *text, size_t n, uint64_t *value)
{
	uint64_t v = 0;

	if (!n || n > 18)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		v = v * 10 + (text[i] - '0');
	}
	*value = v;
	return true;
}

void set_type(struct parser *x, const char *text, size_t n, bool upper)
{
	size_t len = 0;

	for (size_t i = 0; i < n && len < sizeof(x->type) - 1; i++) {
		char c = text[i];

		if (upper && c >= 'a' && c <= 'z')
			c -= 'a' - 'A';
		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		    c == '_' || c == '-' || c == '.')
			x->type[len++] = c;
	}
	x->type[len] = 0;
}

const char *line_word(const struct parser *x, int i, size_t *n)
{
	const char *p = x->line, *stop = p + (x->line_len < LINE_KEPT ? x->line_len : LINE_KEPT);
	const char *space;

	for (; p < stop; p = space + 1) {
		space = memchr(p, ' ', stop - p);
		if (!space)
			space = stop;
		if (!i--) {
			*n = space - p;
			return p;
		}
	}
	return NULL;
}

static void print_counts(FILE *out)
{
	const struct {
		const char *name;
		uint64_t count;
	} rows[] = {
		{"packets", counts.packets},
		{"other_packets", counts.other_packets},
		{"fragments", counts.fragments},
		{"truncated_records", counts.truncated_records},
		{"holes", counts.holes},
		{"hole_bytes", counts.hole_bytes},
		{"resyncs", counts.resyncs},
		{"skipped_bytes", counts.skipped_bytes},
		{"unfinished", counts.unfinished},
		{"streams_refused", counts.streams_refused},
		{"duplicate_bytes", counts.duplicate_bytes},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		fprintf(out, "L\t%s\t%" PRIu64 "\t\t\t\t\t\n", rows[i].name, rows[i].count);
	fputs("E\t\t\t\t\t\t\t\n", out);
}

int main(int argc, char **argv)
{
	static const struct protocol *const protocols[] = {&memcached, &redis, &http, &postgres,
							   &http2};
	const struct protocol *protocol = NULL;
	struct streams *streams;
	struct segment s;
	struct pcap *pcap;
	uint64_t port = 0;

	if (argc < 3 || argc > 4)
		die(EXIT_USAGE, NULL,
		    "usage: nsight-framing memcached|redis|http|postgres|http2 PCAP [SERVER_PORT]");
	for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++)
		if (!strcmp(argv[1], protocols[i]->name))
			protocol = protocols[i];
	if (!protocol)
		die(EXIT_USAGE, "one of memcached, redis, http, postgres, http2",
		    "protocol '%s' is unknown", argv[1]);
	if (argc == 4 && (!parse_u64(argv[3], strlen(argv[3]), &port) || !port || port > 65535))
		die(EXIT_USAGE, "a number from 1 to 65535", "port '%s' is none", argv[3]);
	pcap = pcap_open(argv[2]);
	streams = streams_new(protocol, stdout, port);
	while (pcap_next(pcap, &s))
		streams_add(streams, &s);
	streams_finish(streams);
	pcap_close(pcap);
	print_counts(stdout);
	if (fflush(stdout) || ferror(stdout))
		die(EXIT_IO, "is there space left?", "writing the messages failed");
	return 0;
}
