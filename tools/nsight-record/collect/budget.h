/* SPDX-License-Identifier: GPL-2.0-only */
/* How much of the processors the BPF programs take, measured for a second in each minute. */
#ifndef NSIGHT_BUDGET_H
#define NSIGHT_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct bpf_object;

struct budget {
	struct bpf_object *object;
	uint64_t next, began, run_ns; /* of the measurement */
	int stats;		      /* keeps the kernel's measurement on; -1: it is off */
};

void budget_begin(struct budget *budget, struct bpf_object *object, uint64_t now);
/* Whether a measurement has ended: *share is then of one core, 1.0 all of it. */
bool budget_look(struct budget *budget, uint64_t now, double *share);

#endif
