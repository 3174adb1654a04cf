// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-edges.c: Write calls and returns of Intel PT as an edge stream
 *
 *     perf script --itrace=cr --dlfilter nsight-edges.so --dlarg FILE
 *
 * A filter sees samples only. What perf knows besides (decode errors, full buffers, lost records,
 * context switches) must be added by other means: the program nsight-edges runs perf with this
 * filter and does that. Documentation/formats.md has the layout of FILE.
 */
#include <perf/perf_dlfilter.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edge-stream.h"

struct perf_dlfilter_fns perf_dlfilter_fns;

struct filter {
	struct edge_stream *stream;
	/* perf gives an event the same name each time: comparing pointers tells most of them. */
	const char *branches;
};

/* Packets that perf makes events of, with --itrace=pw. Their raw data: tools/perf/util/event.h. */
static const struct {
	const char *name;
	enum event_code code;
	__u32 offset, size; /* of the payload in the raw data */
} packets[] = {
	/* clang-format off */
	{ "ptwrite", EVENT_PTWRITE, 4, 8 },
	{ "mwait",   EVENT_POWER,   4, 8 },
	{ "pwre",    EVENT_POWER,   4, 8 },
	{ "exstop",  EVENT_POWER,   0, 0 },
	{ "pwrx",    EVENT_POWER,   4, 8 },
	{ "cbr",     EVENT_CBR,     0, 1 },
	/* clang-format on */
};

enum {
	PACKET_PTWRITE,
	PACKET_MWAIT,
	PACKET_PWRE,
	PACKET_EXSTOP,
	PACKET_PWRX,
	PACKET_CBR,
	N_PACKETS,
};

/* What is in the value of an event: power events have their packet in the top byte. */
static __u64 value_of(int packet, __u64 payload)
{
	switch (packet) {
	case PACKET_MWAIT: /* hints, extensions */
		return 1ULL << 56 | (payload & 0x3000000ff);
	case PACKET_PWRE: /* C-state, sub-state, by hardware */
		return 2ULL << 56 | (payload >> 12 & 15) | (payload >> 8 & 15) << 8 |
		       (payload >> 7 & 1) << 16;
	case PACKET_EXSTOP:
		return 3ULL << 56;
	case PACKET_PWRX: /* last C-state, deepest one, wake reasons */
		return 4ULL << 56 | (payload >> 4 & 15) | (payload & 15) << 8 |
		       (payload >> 8 & 15) << 16;
	default:
		return payload;
	}
}

/*
 * A branch out of what is traced is an end, whatever instruction it was: a call into a kernel that
 * is not traced has no return either. Running a guest counts as such, too.
 */
static enum edge_kind kind_of(__u32 flags)
{
	if (flags & (PERF_DLFILTER_FLAG_TRACE_END | PERF_DLFILTER_FLAG_VMENTRY))
		return EDGE_END;
	if (flags & (PERF_DLFILTER_FLAG_TRACE_BEGIN | PERF_DLFILTER_FLAG_VMEXIT))
		return EDGE_BEGIN;
	if (flags & PERF_DLFILTER_FLAG_INTERRUPT) {
		if (flags & PERF_DLFILTER_FLAG_RETURN)
			return EDGE_IRET;
		return flags & PERF_DLFILTER_FLAG_ASYNC ? EDGE_INTERRUPT : EDGE_SOFTWARE_INTERRUPT;
	}
	if (flags & PERF_DLFILTER_FLAG_SYSCALLRET)
		return flags & PERF_DLFILTER_FLAG_RETURN ? EDGE_SYSRET : EDGE_SYSCALL;
	if (flags & PERF_DLFILTER_FLAG_CALL)
		return EDGE_CALL;
	return flags & PERF_DLFILTER_FLAG_RETURN ? EDGE_RETURN : EDGE_NONE;
}

static __u32 symbol_of(struct filter *f, const struct perf_dlfilter_al *al)
{
	if (!al || (!al->sym && !al->dso))
		return 0;
	return stream_symbol(f->stream, al->sym ? al->sym : "", al->dso ? al->dso : "");
}

static void packet_event(struct filter *f, const struct perf_dlfilter_sample *sample)
{
	struct event event = {
		.time = sample->time,
		.cpu = sample->cpu,
		.pid = sample->pid,
		.tid = sample->tid,
	};
	__u64 payload = 0;
	size_t length;
	int i;

	for (i = 0; i < N_PACKETS; i++) {
		length = strlen(packets[i].name);
		if (!strncmp(sample->event, packets[i].name, length) &&
		    (!sample->event[length] || sample->event[length] == ':'))
			break;
	}
	if (i == N_PACKETS || sample->raw_size < packets[i].offset + packets[i].size)
		return;
	memcpy(&payload, (const char *)sample->raw_data + packets[i].offset, packets[i].size);
	event.value = value_of(i, payload);
	event.code = packets[i].code;
	stream_event(f->stream, &event);
}

static bool is_branch(struct filter *f, const char *event)
{
	if (event == f->branches)
		return true;
	if (strncmp(event, "branches", strlen("branches")))
		return false;
	f->branches = event;
	return true;
}

int filter_event(void *data, const struct perf_dlfilter_sample *sample, void *ctx)
{
	struct filter *f = data;
	struct edge edge;

	if (!sample->event)
		return 1;
	if (is_branch(f, sample->event)) {
		edge.kind = kind_of(sample->flags);
		if (edge.kind == EDGE_NONE)
			return 1;
		edge.time = sample->time;
		edge.from = sample->ip;
		edge.to = sample->addr;
		edge.pid = sample->pid;
		edge.tid = sample->tid;
		edge.cpu = sample->cpu;
		edge.from_sym = symbol_of(f, perf_dlfilter_fns.resolve_ip(ctx));
		edge.to_sym = symbol_of(f, perf_dlfilter_fns.resolve_addr(ctx));
		stream_edge(f->stream, &edge);
	} else {
		packet_event(f, sample);
	}
	return stream_failed(f->stream) ? -1 : 1;
}

int start(void **data, void *ctx)
{
	struct filter *f;
	char **args;
	int n_args;

	args = perf_dlfilter_fns.args(ctx, &n_args);
	if (!args || n_args != 1) {
		fprintf(stderr, "nsight-edges: error: no output file\nhint: --dlarg FILE\n");
		return -1;
	}
	f = calloc(1, sizeof(*f));
	if (!f)
		return -1;
	f->stream = stream_open(args[0]);
	if (!f->stream) {
		fprintf(stderr,
			"hint: name a file in a directory that exists and may be written\n");
		free(f);
		return -1;
	}
	*data = f;
	return 0;
}

int stop(void *data, void *ctx __attribute__((unused)))
{
	struct filter *f = data;
	int ret;

	if (!f)
		return 0;
	ret = stream_close(f->stream);
	free(f);
	return ret;
}

const char *filter_description(const char **long_description)
{
	*long_description = "Writes an edge stream to the file that --dlarg names, and prints no "
			    "samples. Use with --itrace=cr. See nsight-edges(1).";
	return "calls and returns of Intel PT, for NSight";
}
