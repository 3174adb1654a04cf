/* SPDX-License-Identifier: GPL-2.0-only */
/* Performance counters of each core, which the programs read. */
#ifndef NSIGHT_COUNTERS_H
#define NSIGHT_COUNTERS_H

struct nsight_collect_bpf;

/* One more of them, by the name that perf has for it; exits if there is none of that name. */
void counters_add(const char *name);

/* Call choose before the programs are loaded, and open after that: it opens the added counters on
 * every core, and prints which are there and why others are not. */
void counters_choose(struct nsight_collect_bpf *skel);
void counters_open(struct nsight_collect_bpf *skel, int n_cpus);

#endif
