/* SPDX-License-Identifier: GPL-2.0-only */
/* What was decoded from a perf.data file: events, and counts of what was not decoded. */
#ifndef NSIGHT_DECODED_EVENTS_H
#define NSIGHT_DECODED_EVENTS_H

#include "events.h"
#include "util.h"
#include "tracepoint_events.h"

#include <stdbool.h>

/* Part of every sample, and of the trailer of every other record */
struct sample_id {
	uint64_t time;
	int32_t pid, tid;
	uint32_t cpu;
};

struct decoded {
	struct nsight_event *events; /* in file order */
	size_t n, cap;
	bool want_wide;		  /* collect the events of tracepoint_events.h too */
	struct nsight_wide *wide; /* the same */
	size_t n_wide, cap_wide;
	uint64_t n_samples;	    /* PERF_RECORD_SAMPLE seen */
	uint64_t n_unused;	    /* samples of events that are deliberately not decoded */
	uint64_t n_without_format;  /* samples whose tracepoint format is unknown */
	uint64_t n_bad_format;	    /* samples whose format lacks a required field */
	uint64_t n_malformed;	    /* records with contradictory lengths or times */
	uint64_t n_unknown_records; /* record types that did not exist when this was written */
	uint64_t n_unknown_ids;	    /* records that belong to no event of this file */
	uint64_t undecodable_bytes; /* after a record that has no sane size */
	uint64_t n_lost_records;    /* PERF_RECORD_LOST */
	uint64_t n_lost_events;	    /* events that these records report as lost */
	uint64_t n_lost_samples;    /* PERF_RECORD_LOST_SAMPLES */
	uint64_t n_throttled;	    /* PERF_RECORD_THROTTLE */
	uint64_t n_aux_truncated;   /* PERF_RECORD_AUX with the truncated flag */
	uint64_t n_aux_errors;	    /* PERF_RECORD_AUXTRACE_ERROR */
	uint64_t auxtrace_bytes;    /* trace data, left to a PT decoder */
	uint32_t auxtrace_type;	    /* enum auxtrace_type of perf; 1: Intel PT */
	bool have_time_conv;
	uint64_t time_shift, time_mult, time_zero;
};

/* Append an event, unless its time is impossible. */
void event_add(struct decoded *out, const struct nsight_event *event);
void wide_add(struct decoded *out, const struct nsight_wide *event);
/* Sort the events by time; events with equal times keep the order of the file. */
void events_sort(struct decoded *out);
void wide_sort(struct decoded *out);

#endif
