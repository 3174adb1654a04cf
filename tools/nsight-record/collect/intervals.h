/* SPDX-License-Identifier: GPL-2.0-only */
/* Intervals between two marks of a program: which ones, and where the marks are. */
#ifndef NSIGHT_COLLECT_INTERVALS_H
#define NSIGHT_COLLECT_INTERVALS_H

#include "rings.h"

struct nsight_collect_bpf;

/*
 * usdt:FILE:PROVIDER:MARK..MARK, uprobe:FILE:FUNCTION..FUNCTION, either with a hand-over between
 * the two and with ,argN at the end, or timer:PID|THREAD; exits if it is none of these.
 */
void intervals_add(const char *spec);

/* Load the programs that are needed. */
void intervals_choose(struct nsight_collect_bpf *skel);

/* Attach them to the marks; exits if a file has no such mark. */
void intervals_attach(struct nsight_collect_bpf *skel);

/* Print a line for each: its number, begins, begins followed by another begin, ends without a
 * begin, those without room or without a key. */
void intervals_print(const struct rings *rings);

#endif
