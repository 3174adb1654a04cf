// SPDX-License-Identifier: GPL-2.0-only
/*
 * pt-libipt - decode Intel PT with libipt, for comparison
 *
 *	pt-libipt AUX CODE
 *	pt-libipt --packets AUX
 *
 * AUX: packets of one CPU. CODE: records of { u64 space, u64 address, u64 since, u8 page[4096] }
 * in order: space 0 for the kernel's half, otherwise CR3 without its lower 13 bits; the page had
 * this content from TSC value since on.
 *
 * stdout: records of { u64 kind, u64 a, u64 b }:
 *	1  branch or interrupt	from, to
 *	2  error		offset in AUX, libipt's code; decoding resumes at the next PSB
 *	3  overflow, or decoding begins	offset in AUX, 0
 *	4  packet		time (TSC + CYC), TNT bits, or 0 for TIP and similar packets
 *
 * --packets prints one line per packet: offset, name, payload.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <intel-pt.h>

#define PAGE 4096

enum kind { BRANCH = 1, ERROR = 2, BEGIN = 3, PACKET = 4 };

struct page {
	uint64_t space;
	uint64_t address;
	uint64_t since;
	uint8_t bytes[PAGE];
};

/* The packets' time at an offset in AUX; libipt's estimate is wrong after a halt of the CPU. */
struct stamp {
	uint64_t offset;
	uint64_t tsc;
};

struct code {
	const struct page *pages;
	size_t n;
	const struct pt_insn_decoder *decoder;
	struct stamp *stamps;
	size_t n_stamps;
};

static int die(const char *what, const char *why)
{
	fprintf(stderr, "pt-libipt: error: %s: %s\n", what, why);
	exit(2);
}

static void put(enum kind kind, uint64_t a, uint64_t b)
{
	const uint64_t words[] = {kind, a, b};

	if (fwrite(words, sizeof(words), 1, stdout) != 1)
		die("stdout", strerror(errno));
}

static void *slurp(const char *name, size_t *size)
{
	FILE *file = fopen(name, "rb");
	uint8_t *bytes;
	long end;

	if (!file || fseek(file, 0, SEEK_END) || (end = ftell(file)) < 0 ||
	    fseek(file, 0, SEEK_SET))
		die(name, strerror(errno));
	bytes = malloc(end + 1);
	if (!bytes || fread(bytes, 1, end, file) != (size_t)end)
		die(name, "cannot be read");
	fclose(file);
	*size = end;
	return bytes;
}

static int order(const void *left, const void *right)
{
	const struct page *a = left, *b = right;

	if (a->space != b->space)
		return a->space < b->space ? -1 : 1;
	return a->address < b->address ? -1 : a->address > b->address;
}

static uint64_t now(const struct code *code)
{
	size_t low = 0, high = code->n_stamps;
	uint64_t offset = 0;

	pt_insn_get_offset(code->decoder, &offset);
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (code->stamps[middle].offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? code->stamps[low - 1].tsc : 0;
}

static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip,
		     void *context)
{
	const struct code *code = context;
	const uint64_t tsc = now(code);
	size_t done = 0;

	while (done < size) {
		struct page key = {
			.space = ip >> 63 ? 0 : asid->cr3 & ~0x1fffull,
			.address = ip & ~(uint64_t)(PAGE - 1),
		};
		const struct page *page = bsearch(&key, code->pages, code->n, sizeof(key), order);
		const struct page *end = code->pages + code->n;
		size_t at = ip % PAGE, n = PAGE - at;

		if (!page)
			break;
		while (page > code->pages && !order(page - 1, &key))
			page--;
		while (page + 1 < end && !order(page + 1, &key) && page[1].since <= tsc)
			page++;
		if (n > size - done)
			n = size - done;
		memcpy(buffer + done, page->bytes + at, n);
		done += n;
		ip += n;
	}
	return done ? (int)done : -pte_nomap;
}

/* Events between two instructions. Returns libipt's status. */
static int events(struct pt_insn_decoder *decoder, int status, uint64_t *last, uint64_t behind)
{
	while (status >= 0 && status & pts_event_pending) {
		struct pt_event event;
		uint64_t offset = 0;

		status = pt_insn_event(decoder, &event, sizeof(event));
		if (status < 0)
			break;
		/* A PSB repeats the state; nothing happened there. libipt reports it since 2.1. */
		if (event.status_update)
			continue;
		switch (event.type) {
		case ptev_async_branch:
			/* The last branch led to an instruction that did not retire. */
			if (*last && event.variant.async_branch.from != behind)
				put(BRANCH, *last, event.variant.async_branch.from);
			put(BRANCH, event.variant.async_branch.from, event.variant.async_branch.to);
			*last = 0;
			break;
		case ptev_async_disabled:
			if (*last && event.variant.async_disabled.at != behind)
				put(BRANCH, *last, event.variant.async_disabled.at);
			*last = 0;
			break;
		case ptev_enabled:
		case ptev_disabled:
			*last = 0;
			break;
		case ptev_overflow:
			pt_insn_get_offset(decoder, &offset);
			put(BEGIN, offset, 0);
			*last = 0;
			break;
		default:
			break;
		}
	}
	return status;
}

static void branches(const struct pt_config *config, struct code *code)
{
	struct pt_insn_decoder *decoder = pt_insn_alloc_decoder(config);
	int status;

	if (!decoder || pt_image_set_callback(pt_insn_get_image(decoder), read_code, code))
		die("libipt", "no decoder");
	code->decoder = decoder;
	while ((status = pt_insn_sync_forward(decoder)) >= 0) {
		uint64_t offset = 0, last = 0, behind = 0;

		pt_insn_get_offset(decoder, &offset);
		put(BEGIN, offset, 0);
		for (;;) {
			struct pt_insn insn;

			status = events(decoder, status, &last, behind);
			if (status < 0)
				break;
			status = pt_insn_next(decoder, &insn, sizeof(insn));
			if (!insn.size && status < 0)
				break;
			if (last && insn.ip != behind)
				put(BRANCH, last, insn.ip);
			last = insn.ip;
			behind = insn.ip + insn.size;
			if (status < 0)
				break;
		}
		if (status == -pte_eos)
			break;
		pt_insn_get_offset(decoder, &offset);
		put(ERROR, offset, -status);
	}
	pt_insn_free_decoder(decoder);
}

static int tnt_bits(const struct pt_packet *packet)
{
	return packet->payload.tnt.bit_size;
}

static void stamp(struct code *code, uint64_t offset, uint64_t tsc)
{
	if (!(code->n_stamps & (code->n_stamps + 1))) {
		size_t n = 2 * code->n_stamps + 2;

		code->stamps = realloc(code->stamps, n * sizeof(*code->stamps));
		if (!code->stamps)
			die("stamps", strerror(ENOMEM));
	}
	code->stamps[code->n_stamps++] = (struct stamp){offset, tsc};
}

static void packets(const struct pt_config *config, struct code *code)
{
	struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(config);
	uint64_t time = 0;

	if (!decoder)
		die("libipt", "no packet decoder");
	while (pt_pkt_sync_forward(decoder) >= 0) {
		struct pt_packet packet;
		int status;

		while ((status = pt_pkt_next(decoder, &packet, sizeof(packet))) >= 0) {
			uint64_t offset = 0;

			switch (packet.type) {
			case ppt_tsc:
			case ppt_cyc:
				time = packet.type == ppt_tsc ? packet.payload.tsc.tsc
							      : time + packet.payload.cyc.value;
				pt_pkt_get_offset(decoder, &offset);
				stamp(code, offset, time);
				break;
			case ppt_tnt_8:
			case ppt_tnt_64:
				put(PACKET, time, tnt_bits(&packet));
				break;
			case ppt_tip:
			case ppt_tip_pge:
			case ppt_tip_pgd:
				put(PACKET, time, 0);
				break;
			default:
				break;
			}
		}
		if (status != -pte_eos) {
			uint64_t offset = 0;

			pt_pkt_get_offset(decoder, &offset);
			put(ERROR, offset, -status);
		}
	}
	pt_pkt_free_decoder(decoder);
}

static void print_packet(uint64_t offset, const struct pt_packet *p)
{
	static const char *const names[] = {
		[ppt_pad] = "PAD",	   [ppt_psb] = "PSB",	     [ppt_psbend] = "PSBEND",
		[ppt_ovf] = "OVF",	   [ppt_stop] = "TraceStop", [ppt_exstop] = "EXSTOP",
		[ppt_fup] = "FUP",	   [ppt_tip] = "TIP",	     [ppt_tip_pge] = "TIP.PGE",
		[ppt_tip_pgd] = "TIP.PGD", [ppt_tnt_8] = "TNT",	     [ppt_tnt_64] = "TNT",
		[ppt_mode] = "MODE.Exec",  [ppt_pip] = "PIP",	     [ppt_tsc] = "TSC",
		[ppt_cbr] = "CBR",	   [ppt_tma] = "TMA",	     [ppt_mtc] = "MTC",
		[ppt_cyc] = "CYC",	   [ppt_pwre] = "PWRE",	     [ppt_pwrx] = "PWRX",
	};
	size_t n = sizeof(names) / sizeof(*names);

	printf("%llx %s", (unsigned long long)offset,
	       (size_t)p->type < n && names[p->type] ? names[p->type] : "?");
	switch (p->type) {
	case ppt_tnt_8:
	case ppt_tnt_64:
		printf(" %u %llx", p->payload.tnt.bit_size,
		       (unsigned long long)p->payload.tnt.payload);
		break;
	case ppt_tsc:
		printf(" %llx", (unsigned long long)p->payload.tsc.tsc);
		break;
	case ppt_cyc:
		printf(" %llx", (unsigned long long)p->payload.cyc.value);
		break;
	case ppt_mtc:
		printf(" %x", p->payload.mtc.ctc);
		break;
	case ppt_tma:
		printf(" %x %x", p->payload.tma.ctc, p->payload.tma.fc);
		break;
	case ppt_cbr:
		printf(" %x", p->payload.cbr.ratio);
		break;
	case ppt_pip:
		printf(" %llx", (unsigned long long)p->payload.pip.cr3);
		break;
	default:
		break;
	}
	putchar('\n');
}

static int list(const struct pt_config *config)
{
	struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(config);
	struct pt_packet packet;
	uint64_t offset = 0;
	int status;

	if (!decoder || pt_pkt_sync_set(decoder, 0))
		die("libipt", "no packet decoder");
	while ((status = pt_pkt_next(decoder, &packet, sizeof(packet))) > 0) {
		print_packet(offset, &packet);
		offset += (uint64_t)status;
	}
	if (status != -pte_eos)
		printf("%llx error %d\n", (unsigned long long)offset, -status);
	pt_pkt_free_decoder(decoder);
	return 0;
}

int main(int argc, char **argv)
{
	struct pt_config config;
	struct code code = {0};
	size_t size;

	if (argc != 3) {
		fprintf(stderr, "usage: pt-libipt AUX CODE | --packets AUX\n");
		return 2;
	}
	pt_config_init(&config);
	config.begin = slurp(strcmp(argv[1], "--packets") ? argv[1] : argv[2], &size);
	config.end = config.begin + size;
	if (!strcmp(argv[1], "--packets"))
		return list(&config);
	code.pages = slurp(argv[2], &size);
	code.n = size / sizeof(struct page);
	packets(&config, &code);
	branches(&config, &code);
	return fflush(stdout) ? die("stdout", strerror(errno)) : 0;
}
