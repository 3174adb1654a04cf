// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-rawdata: converts the record files of the BPF recorder (tools/bpf/record.h) to the same
 * events that nsight-perfdata makes from perf.data, and to timestamps of messages.
 */
#include "output.h"
#include "raw_merge.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
	"usage: nsight-rawdata [--only activity|messages|intervals] RECORDS_DIR OUTDIR\n"
	"\n"
	"Decode RECORDS_DIR/cpu-N.records and machine.records, which the BPF recorder writes, "
	"into\n"
	"OUTDIR/perf-events.bin, an array of 48-byte events in time order, OUTDIR/messages.bin, "
	"an\n"
	"array of 120-byte timestamps of messages core by core, OUTDIR/intervals.bin, an array of "
	"32-byte\n"
	"intervals of threads likewise, and OUTDIR/perf-events.json, which names kinds, strings "
	"and\n"
	"losses. RECORDS_DIR/irqs.tsv, if there is one, names interrupts: a number, a tab, a name "
	"a\n"
	"line.\n"
	"\n"
	"  --only WHAT  activity, messages or intervals: neither of the other two arrays\n"
	"  --help       this text\n"
	"\n"
	"A truncated file gives what can be decoded, exit code 0 and a count of what is missing.\n"
	"Exit codes: 0 decoded, 2 usage, 3 RECORDS_DIR cannot be used, 5 OUTDIR or memory.\n";

static const char COPY_HINT[] = "copy the whole capture directory, or record again";

static const char *const count_names[NSR_N_COUNTS] = {
	[NSR_ACK] = "ack",	     [NSR_PEEK] = "peek",      [NSR_FRAGMENT] = "fragment",
	[NSR_UNPARSED] = "unparsed", [NSR_NO_CALL] = "nocall", [NSR_MULTIPATH] = "multipath",
};

/* Canonical decimal N of cpu-N.records; -1: another file */
static int64_t core_of(const char *name)
{
	const char *digits = name + 4;
	size_t n;

	if (strncmp(name, "cpu-", 4))
		return -1;
	n = strspn(digits, "0123456789");
	if (!n || n > 5 || strcmp(digits + n, ".records") || (n > 1 && *digits == '0'))
		return -1;
	return atoi(digits) < NSIGHT_NO_CPU ? atoi(digits) : -1;
}

static int compare(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

	return a < b ? -1 : a > b;
}

/* Cores that have a file, ascending; the machine's own file, NSR_NO_CPU, comes last. */
static uint32_t *list_cores(const char *path, int dir, size_t *n)
{
	uint32_t *cores = NULL;
	size_t cap = 0;
	struct dirent *d;
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream)
		die(EXIT_BAD_INPUT, COPY_HINT, "%s: %s", path, strerror(errno));
	*n = 0;
	while ((d = readdir(stream))) {
		bool machine = !strcmp(d->d_name, "machine.records");
		int64_t cpu = core_of(d->d_name);

		if (cpu < 0 && !machine)
			continue;
		GROW(cores, *n, cap);
		cores[(*n)++] = machine ? NSR_NO_CPU : (uint32_t)cpu;
	}
	closedir(stream);
	if (*n)
		qsort(cores, *n, sizeof(*cores), compare);
	return cores;
}

/* Lines of a number, a tab and a name. Others are no loss, since an interrupt also has a number. */
static void read_irq_names(struct raw_recording *rec, int dir)
{
	const uint64_t max_number = 1ull << (64 - NSR_DUR_BITS);
	const char *p, *end;
	struct reader r;
	struct stat st;

	rec->irq_names = calloc(max_number, sizeof(*rec->irq_names));
	if (!rec->irq_names)
		die(EXIT_IO, NULL, "out of memory");
	if (fstatat(dir, "irqs.tsv", &st, AT_SYMLINK_NOFOLLOW))
		return;
	reader_open_at(&r, dir, "irqs.tsv");
	p = (const char *)reader_at(&r, 0, r.size < READER_WINDOW ? r.size : READER_WINDOW);
	end = p ? p + r.len : p;
	while (p && p < end) {
		const char *eol = memchr(p, '\n', end - p);
		size_t len = (eol ? eol : end) - p, digits = 0;
		uint64_t number = 0;

		while (digits < len && digits < 8 && p[digits] >= '0' && p[digits] <= '9')
			number = 10 * number + (p[digits++] - '0');
		if (digits && digits < len && p[digits] == '\t' && number < max_number)
			rec->irq_names[number] =
				strings_intern(&rec->strings, p + digits + 1, len - digits - 1);
		p += len + 1;
	}
	reader_close(&r);
}

static void read_files(struct raw_recording *rec, const char *path, bool activity, bool messages,
		       bool intervals)
{
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint32_t *cores;
	size_t n, n_used = 0;

	if (dir < 0)
		die(EXIT_BAD_INPUT, "name the directory records/ of a capture", "%s: %s", path,
		    strerror(errno));
	cores = list_cores(path, dir, &n);
	if (!n)
		die(EXIT_BAD_INPUT, COPY_HINT, "%s: no files of records", path);
	strings_init(&rec->strings);
	read_irq_names(rec, dir);
	rec->n_files = n;
	rec->files = xrealloc(NULL, n, sizeof(*rec->files));
	memset(rec->files, 0, n * sizeof(*rec->files));
	for (size_t i = 0; i < n; i++) {
		struct raw_file *file = &rec->files[i];
		char name[32];

		snprintf(name, sizeof(name), "cpu-%u.records", cores[i]);
		file->want_activity = activity;
		file->want_messages = messages;
		file->want_intervals = intervals;
		n_used +=
			raw_file_read(file, dir, cores[i] == NSR_NO_CPU ? "machine.records" : name,
				      cores[i], &rec->losses);
		if (cores[i] == NSR_NO_CPU)
			continue;
		snprintf(name, sizeof(name), "swapper/%u", cores[i]);
		file->idle = strings_intern(&rec->strings, name, sizeof(name));
	}
	if (!n_used)
		die(EXIT_BAD_INPUT, "the recorder did not get as far as writing records",
		    "%s: no usable file of records", path);
	free(cores);
	close(dir);
}

static const char *type_name(unsigned int type, char *text, size_t size)
{
	static const char *const names[NSR_N_PLAIN] = {
#define X(id, units, name) [NSR_##id] = name,
		NSR_TYPES(X)
#undef X
	};

	if (type < NSR_N_PLAIN)
		return names[type];
	snprintf(text, size, "message %c%s%s", "AHRSXTO"[(type - NSR_MESSAGE) >> 2],
		 type & NSR_V6 ? ", IPv6" : "", type & NSR_HW ? ", hardware timestamp" : "");
	return text;
}

/* For each core and type, missing records: those that the recorder counted as lost, and others */
static void write_lost(FILE *f, const struct raw_recording *rec, uint64_t *missing,
		       uint64_t *surplus)
{
	const char *sep = "\n";
	char text[64];

	*missing = *surplus = 0;
	fputs("  \"lost\": [", f);
	for (size_t i = 0; i < rec->n_files; i++) {
		const struct raw_file *file = &rec->files[i];

		for (unsigned int type = 0; type < NSR_N_TYPES; type++) {
			uint64_t written = file->produced[type] - file->lost[type], gone = 0;

			if (!file->told[type])
				continue;
			/* records may follow after the last count */
			if (file->ended && written < file->present[type])
				*surplus += file->present[type] - written;
			if (written > file->present[type])
				gone = written - file->present[type];
			*missing += gone;
			if (!gone && !file->lost[type])
				continue;
			fprintf(f,
				"%s    {\"cpu\": %d, \"type\": \"%s\", \"lost\": %" PRIu64
				", \"missing\": %" PRIu64 "}",
				sep, file->cpu == NSR_NO_CPU ? -1 : (int)file->cpu,
				type_name(type, text, sizeof(text)), file->lost[type], gone);
			sep = ",\n";
		}
	}
	fputs("],\n", f);
}

static void write_losses(FILE *f, const struct raw_recording *rec, uint64_t missing,
			 uint64_t surplus)
{
	const struct raw_losses *l = &rec->losses;
	uint64_t n_lost = 0;

	for (size_t i = 0; i < rec->n_files; i++)
		for (unsigned int type = 0; type < NSR_N_TYPES; type++)
			n_lost += rec->files[i].lost[type];
	const struct json_count losses[] = {
		{"lost_records", n_lost},
		{"lost_units", l->lost_units},
		{"missing_records", missing},
		{"surplus_records", surplus},
		{"truncated_bytes", l->truncated_bytes},
		{"undecodable_bytes", l->undecodable_bytes},
		{"bad_files", l->bad_files},
		{"bad_blocks", l->bad_blocks},
		{"unknown_blocks", l->unknown_blocks},
		{"unknown_records", l->unknown_records},
		{"malformed", l->malformed},
		{"misplaced", l->misplaced},
		{"saturated", l->saturated},
		{"enters_missing", l->enters_missing},
		{"switches_untraced", l->switches_untraced},
		{"wake_ups_untraced", l->wake_ups_untraced},
		{"steal_without_place", l->steal_without_place},
		{"strings_rejected", rec->strings.rejected},
	};

	json_counts(f, "losses", losses, sizeof(losses) / sizeof(*losses));
}

/* Counts by the BPF programs: messages, and events that are not messages */
static void write_probe_counts(FILE *f, const struct raw_recording *rec)
{
	struct json_count counts[NSR_N_COUNTS];

	for (int i = 0; i < NSR_N_COUNTS; i++) {
		counts[i] = (struct json_count){count_names[i], 0};
		for (size_t k = 0; k < rec->n_files; k++)
			counts[i].value += rec->files[k].counts[i];
	}
	json_counts(f, "probe_counts", counts, NSR_N_COUNTS);
}

static void write_json(const char *dir, const struct raw_recording *rec)
{
	FILE *f = output_create(dir, "perf-events.json");
	uint64_t n_records = 0, missing, surplus;
	size_t n_cut = 0, n_cores = 0;

	for (size_t i = 0; i < rec->n_files; i++) {
		n_records += rec->files[i].n_records;
		n_cut += !rec->files[i].ended;
		n_cores += rec->files[i].cpu != NSR_NO_CPU;
	}
	fputs("{\n  \"format\": \"nsight-perf-events\",\n  \"version\": 1,\n", f);
	fputs("  \"clock\": \"monotonic\",\n  \"clockid\": 1,\n", f);
	fprintf(f, "  \"cut\": %s,\n", n_cut ? "true" : "false");
	json_number(f, "n_cut_files", n_cut);
	json_number(f, "n_cores", n_cores);
	json_number(f, "n_records", n_records);
	json_number(f, "n_events", rec->n_events);
	json_number(f, "n_messages", rec->n_messages);
	json_number(f, "n_intervals", rec->n_intervals);
	json_number(f, "first_ts", rec->first_ts);
	json_number(f, "last_ts", rec->last_ts);
	json_kinds(f, rec->count);
	write_probe_counts(f, rec);
	write_lost(f, rec, &missing, &surplus);
	write_losses(f, rec, missing, surplus);
	json_strings(f, &rec->strings);
	fputs("}\n", f);
	output_finish(f, "perf-events.json");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"only", required_argument, NULL, 'o'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	static struct raw_recording rec;
	bool activity = true, messages = true, intervals = true;
	const char *outdir;
	FILE *f;
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (opt == 'h') {
			fputs(usage, stdout);
			return 0;
		}
		if (opt == 'o') {
			activity = !strcmp(optarg, "activity");
			messages = !strcmp(optarg, "messages");
			intervals = !strcmp(optarg, "intervals");
		}
		if (opt != 'o' || activity + messages + intervals != 1) {
			fputs(usage, stderr);
			return EXIT_USAGE;
		}
	}
	if (argc - optind != 2) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	}

	outdir = argv[optind + 1];
	read_files(&rec, argv[optind], activity, messages, intervals);
	raw_threads_init(&rec.threads, rec.files, rec.n_files, &rec.strings);
	if (messages) {
		f = output_create(outdir, "messages.bin");
		raw_write_stamps(&rec, f);
		output_finish(f, "messages.bin");
	}
	if (intervals) {
		f = output_create(outdir, "intervals.bin");
		raw_write_intervals(&rec, f);
		output_finish(f, "intervals.bin");
	}
	if (activity) {
		for (size_t i = 0; i < rec.n_files; i++)
			raw_file_order(&rec.files[i]);
		f = output_create(outdir, "perf-events.bin");
		raw_write_events(&rec, f);
		output_finish(f, "perf-events.bin");
	}
	write_json(outdir, &rec);
	return 0;
}
