/* SPDX-License-Identifier: GPL-2.0-only */
/* Intervals between two marks of a program: which, and where its marks are. */
#ifndef NSIGHT_COLLECT_INTERVALS_H
#define NSIGHT_COLLECT_INTERVALS_H

#include "rings.h"

struct nsight_collect_bpf;

/*
 * usdt:FILE:PROVIDER:MARK..MARK, uprobe:FILE:FUNCTION..FUNCTION, either with a hand-over between
 * both and ,argN behind, or timer:PID|THREAD; exits if it is none.
 */
void intervals_add(const char *spec);

/* Load the programs that are needed. */
void intervals_choose(struct nsight_collect_bpf *skel);

/* At the marks; exits if a file has no such mark. */
void intervals_attach(struct nsight_collect_bpf *skel);

/* A line for each: its number, begins, those followed by another begin, ends without a begin, those
 * with no room or no key. */
void intervals_print(const struct rings *rings);

#endif
