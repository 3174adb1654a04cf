// SPDX-License-Identifier: GPL-2.0-only
#include "output.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

static const char *const kind_names[K_COUNT] = {
#define X(id, name) name,
	NSIGHT_KINDS(X)
#undef X
};

FILE *output_create(const char *dir, const char *name)
{
	char path[PATH_MAX];
	FILE *f = NULL;

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) < (int)sizeof(path))
		f = fopen(path, "we");
	if (!f)
		die(EXIT_IO, "name an existing directory that you may write to", "%s/%s: %s", dir,
		    name, strerror(errno));
	return f;
}

void output_finish(FILE *f, const char *name)
{
	if (fflush(f) || ferror(f) || fclose(f))
		die(EXIT_IO, "free some disk space", "%s: %s", name, strerror(errno));
}

void output_array(const char *dir, const char *name, const void *array, size_t size, size_t n)
{
	FILE *f = output_create(dir, name);

	if (n) /* otherwise the array may be NULL */
		fwrite(array, size, n, f);
	output_finish(f, name);
}

/* Length of the valid UTF-8 sequence at p, 0 if there is none (RFC 3629). */
static int utf8_len(const unsigned char *p)
{
	int n = p[0] < 0x80   ? 1
		: p[0] < 0xc2 ? 0
		: p[0] < 0xe0 ? 2
		: p[0] < 0xf0 ? 3
		: p[0] < 0xf5 ? 4
			      : 0;

	for (int i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
	    (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

void json_string(FILE *f, const char *text)
{
	const unsigned char *p = (const unsigned char *)text;

	fputc('"', f);
	while (*p) {
		int n = utf8_len(p);

		if (!n) {
			fputs("\\ufffd", f);
			n = 1;
		} else if (*p == '"' || *p == '\\') {
			fprintf(f, "\\%c", *p);
		} else if (*p < 0x20 || *p == 0x7f) {
			fprintf(f, "\\u%04x", *p);
		} else {
			fwrite(p, 1, n, f);
		}
		p += n;
	}
	fputc('"', f);
}

void json_number(FILE *f, const char *key, uint64_t value)
{
	fprintf(f, "  \"%s\": %" PRIu64 ",\n", key, value);
}

void json_text(FILE *f, const char *key, const char *text)
{
	fprintf(f, "  \"%s\": ", key);
	json_string(f, text);
	fputs(",\n", f);
}

void json_names(FILE *f, const char *key, const char *const *names, size_t n)
{
	fprintf(f, "  \"%s\": [", key);
	for (size_t i = 0; i < n; i++) {
		fputs(i ? ", " : "", f);
		json_string(f, names[i]);
	}
	fputs("],\n", f);
}

void json_counts(FILE *f, const char *key, const struct json_count *counts, size_t n)
{
	fprintf(f, "  \"%s\": {", key);
	for (size_t i = 0; i < n; i++)
		fprintf(f, "%s\n    \"%s\": %" PRIu64, i ? "," : "", counts[i].key,
			counts[i].value);
	fputs("\n  },\n", f);
}

void json_kinds(FILE *f, const uint64_t count[K_COUNT])
{
	struct json_count seen[K_COUNT];
	size_t n = 0;

	for (int i = 0; i < K_COUNT; i++)
		if (count[i])
			seen[n++] = (struct json_count){kind_names[i], count[i]};
	json_names(f, "kinds", kind_names, K_COUNT);
	json_counts(f, "counts", seen, n);
}

void json_strings(FILE *f, const struct strings *strings)
{
	fputs("  \"strings\": [", f);
	for (uint32_t i = 0; i < strings->n; i++) {
		fputs(i ? ",\n    " : "\n    ", f);
		json_string(f, strings->text[i]);
	}
	fputs("\n  ]\n", f);
}
