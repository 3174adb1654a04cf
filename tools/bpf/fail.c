// SPDX-License-Identifier: GPL-2.0-only
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void fail(int code, const char *hint, const char *format, ...)
{
	va_list args;

	fflush(stdout); /* in a log of both, what failed stands last */
	fputs("error: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	if (hint)
		fprintf(stderr, "hint: %s\n", hint);
	exit(code);
}
