/* SPDX-License-Identifier: GPL-2.0-only */
/* Which programs this kernel can run; decided by what it has, never by its version. */
#ifndef NSIGHT_TRACEPOINTS_H
#define NSIGHT_TRACEPOINTS_H

#include <stdbool.h>

struct bpf_object;
struct btf;

/* The running kernel's types; ends the program if it does not tell them. */
struct btf *kernel_types(void);

/* Whether BPF programs can call this function of the kernel's. */
bool kernel_has(const struct btf *kernel, const char *function);

/*
 * Leave out programs that are not wanted, or whose tracepoint the kernel lacks; the latter are
 * printed as "missing NAME". Ends the program if one is missing without which there is no
 * recording.
 */
void tracepoints_choose(const struct btf *kernel, struct bpf_object *object, bool activity,
			bool syscalls, bool rx, bool tx);

#endif
