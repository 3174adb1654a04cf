/* SPDX-License-Identifier: GPL-2.0-only */
/* Which programs this kernel can run; decided by what it has, never by its version. */
#ifndef NSIGHT_TRACEPOINTS_H
#define NSIGHT_TRACEPOINTS_H

#include <stdbool.h>

struct bpf_object;

/*
 * Leave out programs that are not wanted, or whose tracepoint the kernel lacks; the latter are
 * printed as "missing NAME". Ends the program if one is missing without which there is no
 * recording.
 */
void tracepoints_choose(struct bpf_object *object, bool activity, bool syscalls, bool rx, bool tx);

#endif
