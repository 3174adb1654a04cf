/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Message boundaries in captured packets: pcap file -> packets -> byte streams -> messages.
 *
 * Everything here comes from the network. A parser sees each byte of a stream once, in order, and
 * keeps a few hundred bytes of state; a message of any size is skipped over, not stored.
 */
#ifndef NSIGHT_FRAMING_H
#define NSIGHT_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One captured TCP segment; pointers are valid until the next one is read. */
struct segment {
	uint8_t family; /* 4 or 16: length of an address */
	uint8_t flags;	/* TCP flags */
	uint16_t sport, dport;
	uint8_t src[16], dst[16];
	uint32_t seq;
	uint32_t len;	 /* payload bytes on the wire */
	uint32_t caplen; /* bytes of it in the file */
	const uint8_t *payload;
};

enum { TH_FIN = 0x01, TH_SYN = 0x02, TH_RST = 0x04, TH_ACK = 0x10 };

/* What was lost or refused; printed at the end as L lines. */
struct counts {
	uint64_t packets, other_packets, fragments, truncated_records;
	uint64_t holes, hole_bytes, resyncs, skipped_bytes, unfinished;
	uint64_t streams_refused;
	uint64_t duplicate_bytes;
};

extern struct counts counts;

/* pcap file */
struct pcap;
struct pcap *pcap_open(const char *path);
/* The next TCP segment; false at the end of the file. */
bool pcap_next(struct pcap *p, struct segment *s);
void pcap_close(struct pcap *p);

/*
 * A parser of one direction of one connection.
 *
 * skip: this many bytes belong to the message whatever they are; byte() is not called for them.
 * Inside them a hole in the stream is harmless; elsewhere the parser loses its state.
 */
#define LINE_KEPT   512
#define NEST_MAX    16
#define SPECIAL_MAX 16

enum role { ROLE_UNKNOWN, ROLE_CLIENT, ROLE_SERVER };

struct parser {
	enum role role; /* the sender of these bytes */
	uint64_t skip;
	bool last_skip; /* the message ends with the skipped bytes */
	bool in_message;
	bool stopped; /* nothing more can be framed, for example after an upgrade */
	int state;
	char type[24];
	uint32_t line_len; /* length of the line so far, kept or not */
	uint64_t head_len; /* length of an HTTP head so far */
	char line[LINE_KEPT];
	/* Redis: elements still to come, by nesting depth */
	int depth;
	uint64_t todo[NEST_MAX];
	/* Redis: words of the command so far; CLIENT REPLY's setting; between MULTI and EXEC */
	unsigned int n_words;
	enum { REPLIES_ALL, REPLIES_SKIP_NEXT, REPLIES_OFF } replies;
	bool of_reply, in_multi;
	/* PostgreSQL: the framed message ends together with the protocol's message; this is its
	 * first one; the client's last query was one of the extended protocol */
	bool ends, first, extended;
	/* HTTP; PostgreSQL uses status, too */
	bool chunked, has_length, until_close;
	int status;
	uint64_t content_length;
	struct parser *peer; /* the other direction, or NULL */
	/* HTTP: requests so far, and those without a reply yet; among the latter, oldest first, the
	 * numbers of those whose method says what comes after the head of a reply */
	uint64_t n_requests, n_waiting;
	struct {
		uint64_t number;
		bool connect; /* CONNECT; else HEAD */
	} special[SPECIAL_MAX];
	unsigned int n_special;
	uint64_t begin; /* offset of the message's first byte; set before that byte is parsed */
	/* HTTP/2: what ends is a message of stream key with n_bytes bytes, unless silent */
	bool silent;
	uint32_t key;
	uint64_t n_bytes; /* 0: all bytes from begin */
	struct open_stream *open;
	unsigned int n_open, cap_open;
};

enum verdict {
	MORE,  /* parse the next byte */
	DONE,  /* the byte was the last one of the message */
	WRONG, /* this is not the protocol */
};

struct protocol {
	const char *name;
	/* Whether a message can begin with these bytes. At least one byte. */
	bool (*plausible)(enum role role, const uint8_t *p, size_t n);
	/* Parse one byte. If it sets skip, the verdict holds after these bytes (last_skip). */
	enum verdict (*byte)(struct parser *x, uint8_t c);
	/* Drop the open messages other than the current one; NULL: there are none. */
	void (*forget)(struct parser *x);
};

extern const struct protocol memcached, redis, http, postgres, http2;

/* Streams */
struct streams;
struct streams *streams_new(const struct protocol *protocol, FILE *out, uint16_t server_port);
void streams_add(struct streams *all, const struct segment *s);
/* Declare missing data a hole, deliver the rest, finish every message that ends with the stream. */
void streams_finish(struct streams *all);

/* Helpers for parsers */
/* Append to the line; true when it is complete (the line ends at \n; \r and \n are cut off). */
bool line_byte(struct parser *x, uint8_t c);
void line_reset(struct parser *x);
/* Decimal number of 1 to 18 digits that fills the whole text; false otherwise. */
bool parse_u64(const char *text, size_t n, uint64_t *value);
/* Copy what is allowed in a type: letters, digits, '_', '-', '.', at most 23; in upper case if
 * upper. */
void set_type(struct parser *x, const char *text, size_t n, bool upper);
/* The i-th word of the line (words are separated by single spaces); NULL if there is none. */
const char *line_word(const struct parser *x, int i, size_t *n);

#endif
