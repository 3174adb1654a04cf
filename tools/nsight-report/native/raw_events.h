/* SPDX-License-Identifier: GPL-2.0-only */
/* Converts the records of a core to the other programs' input: struct nsight_event,
 * nsight_stamp. */
#ifndef NSIGHT_RAW_EVENTS_H
#define NSIGHT_RAW_EVENTS_H

#include "events.h"
#include "raw_file.h"
#include "raw_threads.h"
#include "string_table.h"

#include <stdio.h>

struct raw_recording {
	struct raw_file *files; /* by core, the machine's file last */
	size_t n_files;
	struct raw_threads threads;
	struct strings strings;
	struct raw_losses losses;
	uint32_t *irq_names;	/* strings by number; 0: not named yet */
	uint32_t *reader_names; /* the same for ports, protocol << 16 */
	uint64_t n_events, first_ts, last_ts, n_messages, n_intervals;
	uint64_t count[K_COUNT];
};

#define N_READERS (1u << 24) /* the ports of every protocol */

struct merge {
	struct raw_recording *rec;
	FILE *out;
	uint32_t vector_names[NSR_N_VECTORS];
	size_t *heap; /* files by the time of their next item */
	size_t n;
	size_t n_held;
	struct nsight_event held[1 << 14];
};

void raw_flush(struct merge *m);

static inline void raw_put(struct merge *m, const struct nsight_event *ev)
{
	struct raw_recording *rec = m->rec;

	rec->count[ev->kind]++;
	rec->n_events++;
	if (ev->ts && !rec->first_ts)
		rec->first_ts = ev->ts;
	rec->last_ts = ev->ts;
	m->held[m->n_held++] = *ev;
	if (m->n_held == sizeof(m->held) / sizeof(*m->held))
		raw_flush(m);
}

/* From now on the core of file runs this thread; -1: unknown. */
void raw_runs(struct merge *m, struct raw_file *file, int32_t tid);
/* The thread that must be running on the core, according to a record that is not a switch; -1: it
 * does not show that. */
int32_t raw_told_thread(const struct raw_item *item, const unsigned char *p);
/* Write the events of an item whose time has come. */
void raw_put_item(struct merge *m, struct raw_file *file, const struct raw_item *item);
/* raw_names.c: x86's vector numbers; strings: for an interrupt, and for the reader of a port (if no
 * record names it, the port) */
void raw_name_vectors(struct merge *m);
int raw_vector_number(uint32_t vector);
uint32_t raw_irq_name(struct raw_recording *rec, uint32_t number);
uint32_t raw_reader_name(struct raw_recording *rec, uint32_t port);
/* Write a drop, and its addresses if the record has them. */
void raw_put_drop(struct merge *m, struct nsight_event *ev, const unsigned char *p,
		  unsigned int type);
/* The thread of a message of the file */
uint32_t raw_message_tid(const struct raw_file *file, const struct raw_item *item);
/* Write the timestamps, one core after the other. */
void raw_write_stamps(struct raw_recording *rec, FILE *out);
/* The same for intervals of threads. */
void raw_write_intervals(struct raw_recording *rec, FILE *out);

#endif
