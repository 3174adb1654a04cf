/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel reports about the BPF programs. */
#ifndef NSIGHT_PROGRAMS_H
#define NSIGHT_PROGRAMS_H

#include <bpf/libbpf.h>
#include <stdint.h>

/* ns that the programs ran while the kernel measured their run time */
uint64_t programs_run_ns(struct bpf_object *object);

/*
 * Runs that the kernel skipped. A program does not run while the same program is under way on that
 * core: in an interrupt of it, or in a thread that runs while it is preempted (on kernels that
 * allow preemption in tracepoint handlers).
 */
uint64_t programs_missed(struct bpf_object *object);

/* The same for each program, one line for each that missed runs */
void programs_print_missed(struct bpf_object *object);

/* The same, as a JSON object */
void programs_print_missed_json(struct bpf_object *object);

/* A JSON object: for each loaded program, how often it ran and its total run time while the kernel
 * measured it */
void programs_print_cost(struct bpf_object *object);

#endif
