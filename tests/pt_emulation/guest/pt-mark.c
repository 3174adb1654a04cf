// SPDX-License-Identifier: GPL-2.0-only
/*
 * pt-mark - control the observer from a shell in the guest
 *
 *	pt-mark watch ADDRESS...	log registers whenever execution comes there
 *	pt-mark start NUMBER		begin log NUMBER
 *	pt-mark stop
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mark.h"

static int number(const char *text, int base, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, base);
	if (errno || end == text || *end) {
		fprintf(stderr, "pt-mark: error: %s is no number\n", text);
		return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t value;

	if (argc == 3 && !strcmp(argv[1], "start")) {
		if (number(argv[2], 10, &value))
			return 2;
		pt_mark(PT_MARK_START, value, 0);
	} else if (argc == 2 && !strcmp(argv[1], "stop")) {
		pt_mark(PT_MARK_STOP, 0, 0);
	} else if (argc >= 2 && !strcmp(argv[1], "watch")) {
		pt_mark(PT_MARK_UNWATCH, 0, 0);
		for (int i = 2; i < argc; i++) {
			if (number(argv[i], 16, &value))
				return 2;
			pt_mark(PT_MARK_WATCH, value, 0);
		}
	} else {
		fprintf(stderr, "usage: pt-mark watch HEX-ADDRESS... | start NUMBER | stop\n");
		return 2;
	}
	return 0;
}
