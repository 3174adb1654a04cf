/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel says of the BPF programs. */
#ifndef NSIGHT_PROGRAMS_H
#define NSIGHT_PROGRAMS_H

#include <bpf/libbpf.h>
#include <stdint.h>

/* ns that the programs have run while the kernel measured it */
uint64_t programs_run_ns(struct bpf_object *object);

/*
 * Runs that the kernel left out. A program does not run where the same one is under way on that
 * core: an interrupt in it, or a thread that came while it was preempted (kernels that let handlers
 * of tracepoints be).
 */
uint64_t programs_missed(struct bpf_object *object);

/* The same by program, a line for each with some */
void programs_print_missed(struct bpf_object *object);

/* A JSON object: of each program that is loaded, how often it ran and how long in all, while the
 * kernel measured it */
void programs_print_cost(struct bpf_object *object);

#endif
