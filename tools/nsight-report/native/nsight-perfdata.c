// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-perfdata: decode the tracepoint samples and side-band records of a perf.data file
 * into an array of fixed-size events. perf's own script interface costs 1 to 10 us an event,
 * this about 0.1 us.
 */
#include "formats.h"
#include "records.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
	"usage: nsight-perfdata [--formats DIR] [--wide] PERF_DATA OUTDIR\n"
	"\n"
	"Decode PERF_DATA (a file, or the directory of perf record --kcore) into\n"
	"OUTDIR/perf-events.bin, an array of 48-byte events in time order, and\n"
	"OUTDIR/perf-events.json, which names kinds, strings, losses and the clock.\n"
	"\n"
	"  --formats DIR  copies of tracefs' events/SYSTEM/EVENT/format as DIR/SYSTEM/EVENT,\n"
	"                 used for events whose format is not in PERF_DATA: perf writes\n"
	"                 formats last, so a killed perf leaves none\n"
	"  --wide         also decode what makes a capture of a recording without BPF, into\n"
	"                 OUTDIR/perf-wide.bin: timekeeping:timekeeping_update, "
	"sock:sock_data_queued,\n"
	"                 sock:sock_data_read, net:netif_receive_skb, tcp:tcp_rcv_space_adjust,\n"
	"                 tcp:tcp_destroy_sock, sock:inet_sock_set_state, perf's clock map\n"
	"  --help         this text\n"
	"\n"
	"A truncated file gives what can be decoded, exit code 0 and a count of what is missing.\n"
	"Exit codes: 0 decoded, 2 usage, 3 PERF_DATA cannot be used, 5 OUTDIR or memory.\n";

static const char *const wide_names[W_COUNT] = {
#define X(id, name) name,
	NSIGHT_WIDE_KINDS(X)
#undef X
};

static const char *clock_name(const struct perf_file *pf)
{
	static const char *const names[] = {
		"realtime", "monotonic", NULL, NULL, "monotonic_raw", NULL, NULL, "boottime",
		NULL,	    NULL,	 NULL, "tai"};

	if (!pf->use_clockid)
		return "perf";
	if (pf->clockid < 0 || pf->clockid >= (int)(sizeof(names) / sizeof(*names)) ||
	    !names[pf->clockid])
		return "unknown";
	return names[pf->clockid];
}

static FILE *create(const char *dir, const char *name, char *path)
{
	FILE *f = NULL;

	if (snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX)
		f = fopen(path, "we");
	if (!f)
		die(EXIT_IO, "name an existing directory that you may write to", "%s/%s: %s", dir,
		    name, strerror(errno));
	return f;
}

static void finish(FILE *f, const char *path)
{
	if (fflush(f) || ferror(f) || fclose(f))
		die(EXIT_IO, "free some disk space", "%s: %s", path, strerror(errno));
}

static void write_number(FILE *f, const char *key, uint64_t value, const char *sep)
{
	fprintf(f, "  \"%s\": %" PRIu64 "%s\n", key, value, sep);
}

static void write_text(FILE *f, const char *key, const char *text)
{
	fprintf(f, "  \"%s\": ", key);
	json_string(f, text);
	fputs(",\n", f);
}

static void write_losses(FILE *f, const struct perf_file *pf, const struct decoded *out,
			 const struct formats *formats, const struct strings *strings)
{
	const struct {
		const char *key;
		uint64_t value;
	} losses[] = {
		{"lost_records", out->n_lost_records},
		{"lost_events", out->n_lost_events},
		{"lost_samples", out->n_lost_samples},
		{"throttled", out->n_throttled},
		{"truncated_bytes", pf->truncated_bytes},
		{"undecodable_bytes", out->undecodable_bytes},
		{"malformed", out->n_malformed},
		{"unknown_records", out->n_unknown_records},
		{"unknown_ids", out->n_unknown_ids},
		{"samples_without_format", out->n_without_format},
		{"samples_with_bad_format", out->n_bad_format},
		{"broken_formats", formats->n_broken},
		{"truncated_tracing_data", formats->truncated},
		{"broken_features", pf->feature_errors},
		{"strings_rejected", strings->rejected},
		{"aux_truncated", out->n_aux_truncated},
		{"aux_errors", out->n_aux_errors},
	};
	const size_t n = sizeof(losses) / sizeof(*losses);

	fputs("  \"losses\": {\n", f);
	for (size_t i = 0; i < n; i++) {
		fputs("  ", f);
		write_number(f, losses[i].key, losses[i].value, i + 1 < n ? "," : "");
	}
	fputs("  },\n", f);
}

static void write_kinds(FILE *f, const struct decoded *out)
{
	uint64_t count[K_COUNT] = {0};

	for (size_t i = 0; i < out->n; i++)
		count[out->events[i].kind]++;
	fputs("  \"kinds\": [", f);
	for (int i = 0; i < K_COUNT; i++)
		fprintf(f, "%s\"%s\"", i ? ", " : "", nsight_kind_names[i]);
	fputs("],\n  \"counts\": {", f);
	for (int i = 0, sep = 0; i < K_COUNT; i++)
		if (count[i])
			fprintf(f, "%s\"%s\": %" PRIu64, sep++ ? ", " : "", nsight_kind_names[i],
				count[i]);
	fputs("},\n", f);
}

static void write_wide_kinds(FILE *f)
{
	fputs("  \"wide_kinds\": [", f);
	for (int i = 0; i < W_COUNT; i++)
		fprintf(f, "%s\"%s\"", i ? ", " : "", wide_names[i]);
	fputs("],\n", f);
}

static void write_evts(FILE *f, const struct perf_file *pf)
{
	static const char *const fates[] = {"unused", "decoded", "no format", "bad format"};

	fputs("  \"events\": [\n", f);
	for (uint32_t i = 0; i < pf->n_evts; i++) {
		const struct perf_evt *evt = &pf->evts[i];

		fputs("    {\"name\": ", f);
		json_string(f, evt->name);
		fprintf(f,
			", \"type\": %u, \"config\": %" PRIu64 ", \"samples\": %" PRIu64
			", \"fate\": \"%s\"}%s\n",
			evt->attr.type, (uint64_t)evt->attr.config, evt->n_samples,
			fates[evt->fate], i + 1 < pf->n_evts ? "," : "");
	}
	fputs("  ],\n", f);
}

static void write_json(FILE *f, const struct perf_file *pf, const struct decoded *out,
		       const struct formats *formats, const struct strings *strings)
{
	size_t first = 0;

	/* perf's own records come first, with time 0 */
	while (first < out->n && !out->events[first].ts)
		first++;
	fputs("{\n  \"format\": \"nsight-perf-events\",\n  \"version\": 1,\n", f);
	write_text(f, "clock", clock_name(pf));
	fprintf(f, "  \"clockid\": %d,\n", pf->use_clockid ? pf->clockid : -1);
	write_number(f, "clockid_resolution_ns", pf->clockid_resolution_ns, ",");
	if (pf->have_clock_data)
		fprintf(f,
			"  \"clock_data\": {\"wall_clock_ns\": %" PRIu64
			", \"clockid_ns\": %" PRIu64 "},\n",
			pf->wall_clock_ns, pf->clockid_time_ns);
	if (out->have_time_conv)
		fprintf(f,
			"  \"time_conv\": {\"shift\": %" PRIu64 ", \"mult\": %" PRIu64
			", \"zero\": %" PRIu64 "},\n",
			out->time_shift, out->time_mult, out->time_zero);
	write_text(f, "hostname", pf->hostname);
	write_text(f, "osrelease", pf->osrelease);
	write_text(f, "arch", pf->arch);
	write_text(f, "perf_version", pf->version);
	write_number(f, "nrcpus_online", pf->nrcpus_online, ",");
	write_number(f, "nrcpus_avail", pf->nrcpus_avail, ",");
	fputs("  \"cmdline\": [", f);
	for (uint32_t i = 0; i < pf->argc; i++) {
		fputs(i ? ", " : "", f);
		json_string(f, pf->argv[i]);
	}
	fputs("],\n", f);
	fprintf(f, "  \"cut\": %s,\n", pf->cut ? "true" : "false");
	write_number(f, "n_events", out->n, ",");
	write_number(f, "n_samples", out->n_samples, ",");
	write_number(f, "n_unused_samples", out->n_unused, ",");
	write_number(f, "auxtrace_bytes", out->auxtrace_bytes, ",");
	write_number(f, "auxtrace_type", out->auxtrace_type, ",");
	write_wide_kinds(f);
	write_number(f, "first_ts", first < out->n ? out->events[first].ts : 0, ",");
	write_number(f, "last_ts", first < out->n ? out->events[out->n - 1].ts : 0, ",");
	write_kinds(f, out);
	write_evts(f, pf);
	write_losses(f, pf, out, formats, strings);
	fputs("  \"strings\": [", f);
	for (uint32_t i = 0; i < strings->n; i++) {
		fputs(i ? ",\n    " : "\n    ", f);
		json_string(f, strings->text[i]);
	}
	fputs("\n  ]\n}\n", f);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"formats", required_argument, NULL, 'f'},
		{"wide", no_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *format_dir = NULL;
	bool wide = false;
	struct perf_file pf;
	struct formats formats;
	struct decoded out;
	struct strings strings;
	char path[PATH_MAX];
	FILE *f;
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (opt == 'h') {
			fputs(usage, stdout);
			return 0;
		}
		if (opt == 'w') {
			wide = true;
			continue;
		}
		if (opt != 'f') {
			fputs(usage, stderr);
			return EXIT_USAGE;
		}
		format_dir = optarg;
	}
	if (argc - optind != 2) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	}

	strings_init(&strings);
	perf_file_open(&pf, argv[optind]);
	formats_resolve(&pf, format_dir, &strings, wide, &formats);
	records_read(&pf, &strings, wide, &out);
	reader_close(&pf.r);
	events_sort(&out);

	f = create(argv[optind + 1], "perf-events.bin", path);
	fwrite(out.events, sizeof(*out.events), out.n, f);
	finish(f, path);
	if (wide) {
		wide_sort(&out);
		f = create(argv[optind + 1], "perf-wide.bin", path);
		if (out.n_wide) /* else there is no array */
			fwrite(out.wide, sizeof(*out.wide), out.n_wide, f);
		finish(f, path);
	}
	f = create(argv[optind + 1], "perf-events.json", path);
	write_json(f, &pf, &out, &formats, &strings);
	finish(f, path);
	return 0;
}
