/* SPDX-License-Identifier: GPL-2.0-only */
/* Intervals between two marks of a program: which, and where its marks are. */
#ifndef NSIGHT_COLLECT_INTERVALS_H
#define NSIGHT_COLLECT_INTERVALS_H

#include "rings.h"

struct nsight_collect_bpf;

/* usdt:FILE:PROVIDER:MARK..MARK or uprobe:FILE:FUNCTION..FUNCTION; exits if it is neither. */
void intervals_add(const char *spec);

/* Load the programs that are needed. */
void intervals_choose(struct nsight_collect_bpf *skel);

/* At the marks; exits if a file has no such mark. */
void intervals_attach(struct nsight_collect_bpf *skel);

/* A line for each: its number, begins, those followed by another begin, ends without a begin. */
void intervals_print(const struct rings *rings);

#endif
