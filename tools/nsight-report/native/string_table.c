// SPDX-License-Identifier: GPL-2.0-only
#include "string_table.h"

#include "keyed_hash.h"
#include "util.h"

#include <string.h>

static void strings_rehash(struct strings *s, uint32_t size)
{
	s->hash = xrealloc(s->hash, size, sizeof(*s->hash));
	memset(s->hash, 0, size * sizeof(*s->hash));
	s->hash_mask = size - 1;
	for (uint32_t i = 1; i < s->n; i++) {
		uint32_t h = keyed_hash(s->text[i], strlen(s->text[i])) & s->hash_mask;

		while (s->hash[h])
			h = (h + 1) & s->hash_mask;
		s->hash[h] = i;
	}
}

void strings_init(struct strings *s)
{
	memset(s, 0, sizeof(*s));
	GROW(s->text, s->n, s->cap);
	s->text[s->n++] = strcpy(xrealloc(NULL, 1, 1), "");
	strings_rehash(s, 1024);
}

uint32_t strings_intern(struct strings *s, const char *text, size_t max)
{
	size_t len = strnlen(text, max < STRINGS_MAX_LEN ? max : STRINGS_MAX_LEN);
	uint32_t h;

	if (!len)
		return 0;
	for (h = keyed_hash(text, len) & s->hash_mask; s->hash[h]; h = (h + 1) & s->hash_mask) {
		const char *have = s->text[s->hash[h]];

		if (strlen(have) == len && !memcmp(have, text, len))
			return s->hash[h];
	}
	if (s->n == STRINGS_MAX) {
		s->rejected++;
		return 0;
	}
	GROW(s->text, s->n, s->cap);
	s->text[s->n] = xrealloc(NULL, 1, len + 1);
	memcpy(s->text[s->n], text, len);
	s->text[s->n][len] = '\0';
	s->hash[h] = s->n++;
	if (s->n > s->hash_mask / 2)
		strings_rehash(s, (s->hash_mask + 1) * 2);
	return s->n - 1;
}
