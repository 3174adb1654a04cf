/* SPDX-License-Identifier: GPL-2.0-only */
/* Performance counters of each core, which the programs read. */
#ifndef NSIGHT_COUNTERS_H
#define NSIGHT_COUNTERS_H

struct nsight_collect_bpf;

/* Add a counter by its perf name; exits if no counter has that name. */
void counters_add(const char *name);

/* Call choose before the programs are loaded, and open after that. The latter opens the added
 * counters on every core, and prints which work, and why others do not. */
void counters_choose(struct nsight_collect_bpf *skel);
void counters_open(struct nsight_collect_bpf *skel, int n_cpus);

#endif
