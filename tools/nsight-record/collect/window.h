/* SPDX-License-Identifier: GPL-2.0-only */
/* What the rings hold is written out, while the programs go on writing. */
#ifndef NSIGHT_WINDOW_H
#define NSIGHT_WINDOW_H

#include "rings.h"
#include "threads.h"

struct window {
	uint64_t from; /* nothing is left out from here on but left_out */
	uint64_t until;
	uint64_t left_out; /* units that were written over or never filled */
	uint64_t records, bytes;
};

/* Once a second: which cores write records. */
void window_note(struct rings *rings, uint64_t now);
/*
 * Write the records from ``from`` on, as far as the rings still hold them, into files of the
 * output's directory. steal: what the host took, written with the threads that are there; NULL: of
 * neither.
 */
struct window window_write(const struct rings *rings, struct steal *steal, uint64_t from);

#endif
