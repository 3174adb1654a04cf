/* SPDX-License-Identifier: GPL-2.0-only */
/* Network namespaces of the points: entered, left, and found again. */
#ifndef NSIGHT_NAMESPACES_H
#define NSIGHT_NAMESPACES_H

#include <stdbool.h>
#include <stdint.h>

/* Fails if there is none. */
void namespace_enter(const char *netns);
/* Whether it is there, and entered. */
bool namespace_try(const char *netns);
void namespace_leave(void);
/* Of the namespace that this thread is in: no other ever has it. 0: the kernel has none. */
uint64_t namespace_cookie(void);
/*
 * The namespace that had this path once; false: it has gone. Its path may have gone, and processes
 * still be in it. It is not held open: a deleted one would live on with its devices and addresses.
 */
bool namespace_enter_again(const char *netns, uint64_t cookie, uint64_t inode);

#endif
