/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef NSIGHT_STRING_TABLE_H
#define NSIGHT_STRING_TABLE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Strings of the capture (thread, interrupt and device names), each stored once. Index 0 is the
 * empty string. It also stands for "unknown" and for strings that no longer fit.
 */
#define STRINGS_MAX	(1u << 20)
#define STRINGS_MAX_LEN 255

struct strings {
	char **text;
	uint32_t n, cap;
	uint32_t *hash;
	uint32_t hash_mask;
	uint64_t rejected; /* strings beyond STRINGS_MAX */
};

void strings_init(struct strings *s);
/* Index of the string, which ends at NUL or after max bytes. */
uint32_t strings_intern(struct strings *s, const char *text, size_t max);

#endif
