/* SPDX-License-Identifier: GPL-2.0-only */
/* Writes out what the rings hold, while the programs go on writing. */
#ifndef NSIGHT_WINDOW_H
#define NSIGHT_WINDOW_H

#include "rings.h"
#include "threads.h"

struct window {
	uint64_t from; /* from here on nothing is missing but left_out */
	uint64_t until;
	uint64_t left_out; /* units that were overwritten or never filled */
	uint64_t records, bytes;
	uint64_t no_steal_ns; /* of its begin, for which not all steal time was kept */
};

/* Once a second: note which cores write records. */
void window_note(struct rings *rings, uint64_t now);
/*
 * Write the records from ``from`` on, as far as the rings still hold them, into files of the
 * output's directory. steal: steal time, which is written together with the existing threads; NULL:
 * neither is written.
 */
struct window window_write(const struct rings *rings, struct steal *steal, uint64_t from);

#endif
