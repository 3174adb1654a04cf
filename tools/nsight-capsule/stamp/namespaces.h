/* SPDX-License-Identifier: GPL-2.0-only */
/* Network namespaces of the points: entered, left, and found again. */
#ifndef NSIGHT_NAMESPACES_H
#define NSIGHT_NAMESPACES_H

#include <stdbool.h>
#include <stdint.h>

/* Enter it; fails if it does not exist. */
void namespace_enter(const char *netns);
/* Enter it; returns whether it exists. */
bool namespace_try(const char *netns);
void namespace_leave(void);
/* Cookie of the current thread's namespace; it is never reused. 0: the kernel has no cookies. */
uint64_t namespace_cookie(void);
/*
 * Enter the namespace that once had this path; false: it no longer exists. The path may be removed
 * while processes are still in the namespace. It is not held open: a deleted one would live on with
 * its devices and addresses.
 */
bool namespace_enter_again(const char *netns, uint64_t cookie, uint64_t inode);

#endif
