/* SPDX-License-Identifier: GPL-2.0-only */
/* The processor time of the BPF programs, measured for one second in each minute. */
#ifndef NSIGHT_BUDGET_H
#define NSIGHT_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct bpf_object;

struct budget {
	struct bpf_object *object;
	uint64_t next, began, run_ns; /* of the measurement */
	int stats;		      /* keeps the kernel's run-time statistics on; -1: off */
};

void budget_begin(struct budget *budget, struct bpf_object *object, uint64_t now);
/* True when a measurement has ended: *share is then the share of one core, 1.0 for a whole core. */
bool budget_look(struct budget *budget, uint64_t now, double *share);

#endif
