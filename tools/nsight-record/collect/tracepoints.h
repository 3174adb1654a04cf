/* SPDX-License-Identifier: GPL-2.0-only */
/* Which programs this kernel can run. That depends on its features, never on its version. */
#ifndef NSIGHT_TRACEPOINTS_H
#define NSIGHT_TRACEPOINTS_H

#include <stdbool.h>

struct bpf_object;
struct btf;

/* The running kernel's types; ends the program if the kernel does not provide them. */
struct btf *kernel_types(void);

/* Whether BPF programs can call this kernel function. */
bool kernel_has(const struct btf *kernel, const char *function);

/*
 * Leave out programs that are not wanted, or whose tracepoint the kernel lacks; the latter are
 * printed as "missing NAME". Ends the program if a tracepoint is missing that every recording
 * needs.
 */
void tracepoints_choose(const struct btf *kernel, struct bpf_object *object, bool activity,
			bool syscalls, bool rx, bool tx);

#endif
