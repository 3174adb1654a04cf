/* SPDX-License-Identifier: GPL-2.0-only */
/* The rings that the BPF programs write to, as user space sees them. */
#ifndef NSIGHT_RINGS_H
#define NSIGHT_RINGS_H

#include "output.h"

struct ring {
	struct nsr_control *control;
	unsigned char *data;
	struct output *output;
	uint64_t noted, moved; /* flight recorder: the head at the last look, and its last change */
};

struct rings {
	struct ring *of; /* one for each core */
	int n;
	uint64_t mask; /* units of a ring minus one */
	uint32_t shift;
	uint32_t chunk_shift, n_chunks; /* see struct nsr_control */
};

uint64_t monotonic_ns(void);
/* Copy new records into the files; returns their bytes. */
uint64_t rings_drain(struct rings *rings);
/* Copy the rest, after the programs have stopped. */
void rings_drain_rest(struct rings *rings);

/* Records of this type that the programs produced so far */
uint64_t rings_produced(const struct rings *rings, enum nsr_type type);
/* The same of drops, whatever they tell */
uint64_t rings_drops(const struct rings *rings);

#endif
