// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-perfdata: decode the tracepoint samples and side-band records of a perf.data file into an
 * array of fixed-size events. perf's own script interface takes 1 to 10 us per event, this about
 * 0.1 us.
 */
#include "formats.h"
#include "output.h"
#include "records.h"

#include <getopt.h>
#include <inttypes.h>

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

static void write_losses(FILE *f, const struct perf_file *pf, const struct decoded *out,
			 const struct formats *formats, const struct strings *strings)
{
	const struct json_count losses[] = {
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

	json_counts(f, "losses", losses, sizeof(losses) / sizeof(*losses));
}

static void write_kinds(FILE *f, const struct decoded *out)
{
	uint64_t count[K_COUNT] = {0};

	for (size_t i = 0; i < out->n; i++)
		count[out->events[i].kind]++;
	json_kinds(f, count);
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

static void write_json(const char *dir, const struct perf_file *pf, const struct decoded *out,
		       const struct formats *formats, const struct strings *strings)
{
	FILE *f = output_create(dir, "perf-events.json");
	size_t first = 0;

	/* perf's own records come first, with time 0 */
	while (first < out->n && !out->events[first].ts)
		first++;
	fputs("{\n  \"format\": \"nsight-perf-events\",\n  \"version\": 1,\n", f);
	json_text(f, "clock", clock_name(pf));
	fprintf(f, "  \"clockid\": %d,\n", pf->use_clockid ? pf->clockid : -1);
	json_number(f, "clockid_resolution_ns", pf->clockid_resolution_ns);
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
	json_text(f, "hostname", pf->hostname);
	json_text(f, "osrelease", pf->osrelease);
	json_text(f, "arch", pf->arch);
	json_text(f, "perf_version", pf->version);
	json_number(f, "nrcpus_online", pf->nrcpus_online);
	json_number(f, "nrcpus_avail", pf->nrcpus_avail);
	fputs("  \"cmdline\": [", f);
	for (uint32_t i = 0; i < pf->argc; i++) {
		fputs(i ? ", " : "", f);
		json_string(f, pf->argv[i]);
	}
	fputs("],\n", f);
	fprintf(f, "  \"cut\": %s,\n", pf->cut ? "true" : "false");
	json_number(f, "n_events", out->n);
	json_number(f, "n_samples", out->n_samples);
	json_number(f, "n_unused_samples", out->n_unused);
	json_number(f, "auxtrace_bytes", out->auxtrace_bytes);
	json_number(f, "auxtrace_type", out->auxtrace_type);
	json_names(f, "wide_kinds", wide_names, W_COUNT);
	json_number(f, "first_ts", first < out->n ? out->events[first].ts : 0);
	json_number(f, "last_ts", first < out->n ? out->events[out->n - 1].ts : 0);
	write_kinds(f, out);
	write_evts(f, pf);
	write_losses(f, pf, out, formats, strings);
	json_strings(f, strings);
	fputs("}\n", f);
	output_finish(f, "perf-events.json");
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
	const char *outdir;
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

	outdir = argv[optind + 1];
	strings_init(&strings);
	perf_file_open(&pf, argv[optind]);
	formats_resolve(&pf, format_dir, &strings, wide, &formats);
	records_read(&pf, &strings, wide, &out);
	reader_close(&pf.r);
	events_sort(&out);

	output_array(outdir, "perf-events.bin", out.events, sizeof(*out.events), out.n);
	if (wide) {
		wide_sort(&out);
		output_array(outdir, "perf-wide.bin", out.wide, sizeof(*out.wide), out.n_wide);
	}
	write_json(outdir, &pf, &out, &formats, &strings);
	return 0;
}
