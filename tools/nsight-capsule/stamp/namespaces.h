/* SPDX-License-Identifier: GPL-2.0-only */
/* Network namespaces of the points: entered, left, and found again. */
#ifndef NSIGHT_NAMESPACES_H
#define NSIGHT_NAMESPACES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Enter the namespace that was looked at; the path may lead to another one by now, or nowhere.
 * cookie 0: whichever it leads to. False: it no longer exists, or nothing leads to it.
 */
bool namespace_enter(const char *netns, uint64_t cookie, uint64_t inode);
void namespace_leave(void);
/* Enter a new namespace, which ends when the last descriptor that was opened in it is closed. */
bool namespace_make(void);
/* Cookie of the current thread's namespace; it is never reused. 0: the kernel has no cookies. */
uint64_t namespace_cookie(void);
/*
 * Enter the namespace that once had this path; false: it no longer exists. The path may be removed
 * while processes are still in the namespace. It is not held open: a deleted one would live on with
 * its devices and addresses.
 */
bool namespace_enter_again(const char *netns, uint64_t cookie, uint64_t inode);

#endif
