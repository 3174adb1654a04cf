/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef NSIGHT_FAIL_H
#define NSIGHT_FAIL_H

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_OUTPUT = 5 };

/* Print the error and what helps against it, and exit. */
void fail(int code, const char *hint, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#endif
