// SPDX-License-Identifier: GPL-2.0-only
/*
 * pt-mark - control the observer from a shell in the guest
 *
 *	pt-mark watch ADDRESS...	log registers whenever execution reaches ADDRESS
 *	pt-mark start NUMBER		begin log NUMBER
 *	pt-mark stop
 *	pt-mark vdso FILE		store the guest's vDSO, which is in no file of the guest
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

static int store_vdso(const char *name)
{
	FILE *maps = fopen("/proc/self/maps", "r"), *out = fopen(name, "wb");
	unsigned long start, end;
	char line[256];
	int done = 0;

	while (maps && out && !done && fgets(line, sizeof(line), maps))
		done = strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2 &&
		       fwrite((const void *)start, end - start, 1, out) == 1;
	if (!done || fclose(out)) {
		fprintf(stderr, "pt-mark: error: %s: %s\n", name, strerror(errno));
		return 1;
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
	} else if (argc == 3 && !strcmp(argv[1], "vdso")) {
		return store_vdso(argv[2]);
	} else {
		fputs("usage: pt-mark watch HEX-ADDRESS... | start NUMBER | stop | vdso FILE\n",
		      stderr);
		return 2;
	}
	return 0;
}
