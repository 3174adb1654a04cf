/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The file layer of perf.data: header, events with their ids, features.
 * Layout: tools/perf/Documentation/perf.data-file-format.txt of the kernel tree.
 */
#ifndef NSIGHT_PERF_FILE_H
#define NSIGHT_PERF_FILE_H

#include "util.h"

#include <linux/perf_event.h>
#include <stdbool.h>

/* Feature bits (enum of tools/perf/util/header.h) that are used here */
enum perf_feature {
	FEAT_TRACING_DATA = 1,
	FEAT_HOSTNAME = 3,
	FEAT_OSRELEASE = 4,
	FEAT_VERSION = 5,
	FEAT_ARCH = 6,
	FEAT_NRCPUS = 7,
	FEAT_CMDLINE = 11,
	FEAT_CLOCKID = 23,
	FEAT_DIR_FORMAT = 24,
	FEAT_COMPRESSED = 27,
	FEAT_CLOCK_DATA = 29,
	FEAT_BITS = 256,
};

struct plan;

enum evt_fate {
	FATE_UNUSED, /* not a tracepoint, or one that no context needs */
	FATE_DECODED,
	FATE_NO_FORMAT,
	FATE_BAD_FORMAT, /* lacks a required field */
};

/* One perf_event_attr of the file, and how its records are read */
struct perf_evt {
	struct perf_event_attr attr;
	const struct plan *plan; /* NULL: its samples are only counted */
	enum evt_fate fate;
	char name[128]; /* SYSTEM:EVENT of a tracepoint with a known format */
	uint64_t n_samples;
};

struct perf_file {
	struct reader r;
	uint64_t data_start, data_end;
	bool cut;		  /* perf was killed before it wrote the size of its data */
	uint64_t truncated_bytes; /* announced by the header, but not in the file */
	uint64_t feature_errors;  /* feature sections that could not be read */

	struct {
		uint64_t off, size;
	} feature[FEAT_BITS]; /* size 0: absent */

	struct perf_evt *evts;
	uint32_t n_evts;
	struct id_slot {
		uint64_t id;
		uint32_t evt; /* index + 1; 0: free */
	} * ids;
	uint32_t ids_mask, n_ids;

	char hostname[256], osrelease[256], version[256], arch[64];
	char **argv;
	uint32_t argc;
	uint32_t nrcpus_online, nrcpus_avail;
	bool use_clockid;
	int32_t clockid;
	uint64_t clockid_resolution_ns;
	bool have_clock_data; /* one pair of readings taken at the start */
	uint64_t wall_clock_ns, clockid_time_ns;
};

/* Read everything except records. Exits with a message when the file is unusable. */
void perf_file_open(struct perf_file *pf, const char *path);
/* The event with this id, or NULL. */
struct perf_evt *perf_file_evt(const struct perf_file *pf, uint64_t id);

#endif
