/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads the slow messages that the BPF programs found, while the programs go on writing. */
#ifndef NSIGHT_TRIGGERS_H
#define NSIGHT_TRIGGERS_H

#include "../../bpf/flight_triggers.h"

#include <stdint.h>

enum trigger_copy {
	TRIGGER_COPIED,
	TRIGGER_UNFINISHED, /* a program is still writing it, or a newer one in its place */
	TRIGGER_REPLACED,   /* a newer one has its place, or an older one was still being written */
};

/* Copy slow message n, counted from 0, out of the FLIGHT_TRIGGERS newest ones. */
enum trigger_copy trigger_copy(const struct flight_trigger *triggers, uint64_t n,
			       struct flight_trigger *copy);

#endif
