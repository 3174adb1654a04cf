/* SPDX-License-Identifier: GPL-2.0-only */
/* What only user space can find out: threads that existed before the programs, and steal time. */
#ifndef NSIGHT_THREADS_H
#define NSIGHT_THREADS_H

#include "output.h"

#define MAX_STEAL_CPUS 4096

#define N_STOLEN 4096

struct steal {
	uint64_t ns[MAX_STEAL_CPUS];
	/* The newest ones, for the flight recorder */
	struct stolen {
		uint64_t time, ns;
		uint32_t cpu;
	} stolen[N_STOLEN];
	uint64_t n_stolen;
	uint64_t forgotten; /* time of the newest one that is not kept any more */
};

/* Write a record for every thread in /proc. */
void threads_were_there(struct output *out, uint64_t now);
/* Note the steal time of each core so far. */
void steal_begin(struct steal *steal);
/* Write a record for each core with steal time since the last look. */
void steal_look(struct steal *steal, struct output *out, uint64_t now);
/* Keep what steal_look() would write; steal_write() writes what was kept since a given time, and
 * returns for how many ns after that some is not kept any more. */
void steal_note(struct steal *steal, uint64_t now);
uint64_t steal_write(struct steal *steal, struct output *out, uint64_t since);

#endif
