// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-contexts: turns decoded events into which thread ran on which core, and when. This file
 * reads and writes; the work is in nesting.c.
 */
#include "nesting.h"
#include "output.h"

#include <inttypes.h>
#include <string.h>

static const char usage[] =
	"usage: nsight-contexts EVENTS OUTDIR\n"
	"\n"
	"From EVENTS (perf-events.bin of nsight-perfdata) make OUTDIR/calls.bin, contexts.bin and\n"
	"contexts.json: which thread ran on which core and when, nested, and the number of "
	"repairs.\n"
	"Exit codes: 0 done, 2 usage, 3 EVENTS cannot be used, 5 OUTDIR or memory.\n";

static void read_events(struct builder *b, const char *path)
{
	struct reader r;

	reader_open(&r, path);
	if (r.size % sizeof(*b->events))
		die(EXIT_BAD_INPUT, "make it again with nsight-perfdata",
		    "%s: not an array of events", path);
	b->n = r.size / sizeof(*b->events);
	b->events = xrealloc(NULL, b->n + 1, sizeof(*b->events));
	for (size_t i = 0; i < b->n; i++) {
		const unsigned char *p = reader_at(&r, i * sizeof(*b->events), sizeof(*b->events));

		if (!p)
			die(EXIT_BAD_INPUT, "make it again with nsight-perfdata", "%s: shrank",
			    path);
		memcpy(&b->events[i], p, sizeof(*b->events));
		if (b->events[i].kind >= K_COUNT || b->events[i].ts > INT64_MAX / 2 ||
		    (i && b->events[i].ts < b->events[i - 1].ts))
			die(EXIT_BAD_INPUT, "make it again with nsight-perfdata",
			    "%s: event %zu has an unknown kind or an impossible time", path, i);
	}
	reader_close(&r);
}

static void write_tables(struct builder *b, const char *dir)
{
	FILE *calls = output_create(dir, "calls.bin"),
	     *intervals = output_create(dir, "contexts.bin");
	int64_t base = 0; /* indices have counted per core so far */

	for (size_t i = 0; i < NSIGHT_NO_CPU; i++) {
		struct core *core = b->cores[i];

		if (!core)
			continue;
		for (size_t k = 0; k < core->n_calls; k++)
			if (core->calls[k].parent >= 0)
				core->calls[k].parent += base;
		for (size_t k = 0; k < core->n_intervals; k++)
			core->intervals[k].call += base;
		base += core->n_calls;
		if (core->n_calls)
			fwrite(core->calls, sizeof(*core->calls), core->n_calls, calls);
		if (core->n_intervals)
			fwrite(core->intervals, sizeof(*core->intervals), core->n_intervals,
			       intervals);
	}
	output_finish(calls, "calls.bin");
	output_finish(intervals, "contexts.bin");
}

static void write_json(const struct builder *b, const char *dir)
{
	FILE *f = output_create(dir, "contexts.json");
	const char *sep = "";

	fputs("{\"format\": \"nsight-contexts\", \"version\": 1, \"repairs\": {", f);
#define X(name)                                                                                    \
	fprintf(f, "%s\n  \"%s\": %" PRIu64, sep, #name, b->repairs.name);                         \
	sep = ",";
	REPAIRS(X)
#undef X
	fputs("\n}}\n", f);
	output_finish(f, "contexts.json");
}

int main(int argc, char **argv)
{
	static struct builder b;

	if (argc == 2 && !strcmp(argv[1], "--help")) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc != 3) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	}
	read_events(&b, argv[1]);
	nest(&b);
	write_tables(&b, argv[2]);
	write_json(&b, argv[2]);
	return 0;
}
