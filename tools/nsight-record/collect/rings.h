/* SPDX-License-Identifier: GPL-2.0-only */
/* The rings that the BPF programs write, as user space sees them. */
#ifndef NSIGHT_RINGS_H
#define NSIGHT_RINGS_H

#include "output.h"

struct ring {
	struct nsr_control *control;
	unsigned char *data;
	struct output *output;
	uint64_t noted, moved; /* of the flight recorder: the head as it was noted last, and when it
				  was another */
};

struct rings {
	struct ring *of; /* each core */
	int n;
	uint64_t mask; /* units of a ring less one */
	uint32_t shift;
	uint32_t chunk_shift, n_chunks; /* see struct nsr_control */
};

uint64_t monotonic_ns(void);
/* Copy what is new into the files; how many bytes that was. */
uint64_t rings_drain(struct rings *rings);
/* The last of it, when the programs have stopped. */
void rings_drain_rest(struct rings *rings);

#endif
