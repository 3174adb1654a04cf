// SPDX-License-Identifier: GPL-2.0-only
/* Reads packets of a pcap file as TCP segments. Format: draft-ietf-opsawg-pcap. */
#include "framing.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_MAX (1u << 20) /* BIG TCP allows half of this; larger means a damaged length */

enum {
	LINK_NULL = 0,
	LINK_ETHERNET = 1,
	LINK_RAW_BSD = 12,
	LINK_RAW_OPENBSD = 14,
	LINK_RAW = 101,
	LINK_SLL = 113,
	LINK_IPV4 = 228,
	LINK_IPV6 = 229,
	LINK_SLL2 = 276,
};

struct pcap {
	FILE *file;
	const char *path;
	bool swapped;
	uint32_t link;
	uint8_t *record;
};

static uint32_t get32(const struct pcap *p, const uint8_t *at)
{
	uint32_t v = load32(at);

	return p->swapped ? __builtin_bswap32(v) : v;
}

static uint16_t be16(const uint8_t *p)
{
	return p[0] << 8 | p[1];
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)be16(p) << 16 | be16(p + 2);
}

struct pcap *pcap_open(const char *path)
{
	static const char *const hint = "payload.pcap must be written by nsight-record --payload, "
					"or by tcpdump -w";
	struct pcap *p = xrealloc(NULL, 1, sizeof(*p));
	uint8_t header[24];
	uint32_t magic;

	memset(p, 0, sizeof(*p));
	p->path = path;
	p->file = fopen(path, "rbe");
	if (!p->file)
		die(EXIT_BAD_INPUT, hint, "%s: %s", path, strerror(errno));
	if (fread(header, 1, sizeof(header), p->file) != sizeof(header))
		die(EXIT_BAD_INPUT, hint, "%s: shorter than the header of a pcap file", path);
	magic = load32(header);
	if (magic == 0x0a0d0d0a)
		die(EXIT_BAD_INPUT, "convert it: editcap -F pcap IN OUT",
		    "%s: is in pcapng format, not pcap", path);
	p->swapped = magic == 0xd4c3b2a1 || magic == 0x4d3cb2a1;
	if (!p->swapped && magic != 0xa1b2c3d4 && magic != 0xa1b23c4d)
		die(EXIT_BAD_INPUT, hint, "%s: not a pcap file", path);
	p->link = get32(p, header + 20) & 0x0fffffff; /* the remaining bits describe the FCS */
	switch (p->link) {
	case LINK_NULL:
	case LINK_ETHERNET:
	case LINK_RAW_BSD:
	case LINK_RAW_OPENBSD:
	case LINK_RAW:
	case LINK_SLL:
	case LINK_IPV4:
	case LINK_IPV6:
	case LINK_SLL2:
		break;
	default:
		die(EXIT_BAD_INPUT, hint, "%s: link type %u is not supported", path, p->link);
	}
	p->record = xrealloc(NULL, 1, RECORD_MAX);
	return p;
}

void pcap_close(struct pcap *p)
{
	fclose(p->file);
	free(p->record);
	free(p);
}

/* Offset of the IP header, or -1 when the packet is not IP. */
static int ip_offset(const struct pcap *p, const uint8_t *data, size_t n)
{
	uint16_t type;
	size_t at;

	switch (p->link) {
	case LINK_NULL:
		return 4;
	case LINK_SLL:
		type = n >= 16 ? be16(data + 14) : 0;
		at = 16;
		break;
	case LINK_SLL2:
		type = n >= 20 ? be16(data) : 0;
		at = 20;
		break;
	case LINK_ETHERNET:
		type = n >= 14 ? be16(data + 12) : 0;
		at = 14;
		break;
	default:
		return 0;
	}
	/* VLAN tags, at most two */
	for (int i = 0; i < 2 && (type == 0x8100 || type == 0x88a8); i++) {
		if (n < at + 4)
			return -1;
		type = be16(data + at + 2);
		at += 4;
	}
	return type == 0x0800 || type == 0x86dd ? (int)at : -1;
}

static bool parse_tcp(struct segment *s, const uint8_t *p, size_t captured, size_t total)
{
	size_t header;

	if (captured < 20 || total < 20)
		return false;
	header = (p[12] >> 4) * 4;
	if (header < 20 || header > total)
		return false;
	s->sport = be16(p);
	s->dport = be16(p + 2);
	s->seq = be32(p + 4);
	s->flags = p[13];
	s->len = total - header;
	s->caplen = captured > header ? captured - header : 0;
	if (s->caplen > s->len) /* padding of short frames */
		s->caplen = s->len;
	s->payload = p + header;
	return true;
}

static bool parse_ip4(struct segment *s, const uint8_t *p, size_t captured, size_t wire)
{
	size_t header, total;

	if (captured < 20)
		return false;
	header = (p[0] & 15) * 4;
	total = be16(p + 2);
	if (!total) /* larger than 64 KiB, or left to the NIC */
		total = wire;
	if (header < 20 || header > captured || total < header || p[9] != 6)
		return false;
	if (be16(p + 6) & 0x3fff) {
		counts.fragments++;
		return false;
	}
	s->family = 4;
	memcpy(s->src, p + 12, 4);
	memcpy(s->dst, p + 16, 4);
	return parse_tcp(s, p + header, captured - header, total - header);
}

static bool parse_ip6(struct segment *s, const uint8_t *p, size_t captured, size_t wire)
{
	size_t at = 40, total;
	uint8_t next;

	if (captured < 40)
		return false;
	total = be16(p + 4) + 40;
	if (total == 40) /* jumbo payload: BIG TCP */
		total = wire;
	next = p[6];
	s->family = 16;
	memcpy(s->src, p + 8, 16);
	memcpy(s->dst, p + 24, 16);
	/* hop-by-hop, routing, destination options */
	for (int i = 0; i < 8 && (next == 0 || next == 43 || next == 60); i++) {
		if (captured < at + 8)
			return false;
		next = p[at];
		at += (p[at + 1] + 1) * 8;
	}
	if (next == 44)
		counts.fragments++;
	if (next != 6 || at > captured || at > total)
		return false;
	return parse_tcp(s, p + at, captured - at, total - at);
}

static bool parse_packet(const struct pcap *p, struct segment *s, size_t captured, size_t wire)
{
	int at = ip_offset(p, p->record, captured);
	const uint8_t *ip;

	if (at < 0 || (size_t)at >= captured || wire < captured)
		return false;
	ip = p->record + at;
	memset(s, 0, sizeof(*s));
	switch (ip[0] >> 4) {
	case 4:
		return parse_ip4(s, ip, captured - at, wire - at);
	case 6:
		return parse_ip6(s, ip, captured - at, wire - at);
	}
	return false;
}

bool pcap_next(struct pcap *p, struct segment *s)
{
	uint8_t header[16];
	uint32_t captured, wire;
	size_t n;

	for (;;) {
		n = fread(header, 1, sizeof(header), p->file);
		if (!n)
			return false;
		captured = get32(p, header + 8);
		wire = get32(p, header + 12);
		if (n != sizeof(header) || captured > RECORD_MAX ||
		    fread(p->record, 1, captured, p->file) != captured) {
			/* Cut in a record, or a wrong length: the rest is lost. */
			counts.truncated_records++;
			return false;
		}
		counts.packets++;
		if (parse_packet(p, s, captured, wire))
			return true;
		counts.other_packets++;
	}
}
