/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The text of a tracepoint's format, as tracefs and perf.data have it: lines "name:", "ID:" and
 * "format:", then one line for each field. It comes from an untrusted file, so it is parsed here
 * and not by libtraceevent, which crashes on damaged ones.
 */
#ifndef NSIGHT_FORMAT_TEXT_H
#define NSIGHT_FORMAT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct format {
	uint32_t id;
	size_t order; /* in which the formats were read */
	char *system, *name;
	char *fields; /* lines */
	char *text;   /* contains name and fields */
};

enum { FIELD_ARRAY = 1, FIELD_SIGNED = 2, FIELD_DATA_LOC = 4, FIELD_REL_LOC = 8 };

struct format_field {
	uint32_t offset, size;
	uint32_t element; /* size of one element of an array; 0: unknown */
	unsigned int flags;
};

/* The field with this name; false: there is none. */
bool format_field(const struct format *format, const char *name, struct format_field *field);

/* Formats by id; if several have the same id, the first one counts. */
struct format_list {
	struct format *formats;
	size_t n, cap;
};

/* Add a format; false: the size bytes of text are not a format. */
bool format_list_add(struct format_list *list, const char *system, const char *text, size_t size);
/* Call it before format_list_find(). */
void format_list_sort(struct format_list *list);
const struct format *format_list_find(const struct format_list *list, uint64_t id);
void format_list_free(struct format_list *list);

#endif
