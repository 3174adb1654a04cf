/* SPDX-License-Identifier: GPL-2.0-only */
/* How the recording programs end when something is wrong. */
#ifndef NSIGHT_FAIL_H
#define NSIGHT_FAIL_H

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_MISSING = 4, EXIT_OUTPUT = 5 };

/* Print the error and, unless it is NULL, the hint, and exit. */
void fail(int code, const char *hint, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#endif
