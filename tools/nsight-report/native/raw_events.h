/* SPDX-License-Identifier: GPL-2.0-only */
/* From the records of all cores to what the other programs read: struct nsight_event, nsight_stamp.
 */
#ifndef NSIGHT_RAW_EVENTS_H
#define NSIGHT_RAW_EVENTS_H

#include "events.h"
#include "raw_file.h"
#include "raw_threads.h"
#include "string_table.h"

#include <stdio.h>

struct raw_recording {
	struct raw_file *files; /* by core, that of the machine last */
	size_t n_files;
	struct raw_threads threads;
	struct strings strings;
	struct raw_losses losses;
	uint32_t *irq_names;	/* strings by number; 0: not named yet */
	uint32_t *reader_names; /* the same of ports, protocol << 16 */
	uint64_t n_events, first_ts, last_ts, n_messages, n_intervals;
	uint64_t count[K_COUNT];
};

/* The events of all files in order of time; what was there before the recording comes first. */
void raw_write_events(struct raw_recording *rec, FILE *out);
/* The stamps of one core after the other. */
void raw_write_stamps(struct raw_recording *rec, FILE *out);
/* The same of intervals of threads. */
void raw_write_intervals(struct raw_recording *rec, FILE *out);

#endif
