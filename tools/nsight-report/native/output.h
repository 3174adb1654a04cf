/* SPDX-License-Identifier: GPL-2.0-only */
/* Files that the programs write, and their JSON. */
#ifndef NSIGHT_OUTPUT_H
#define NSIGHT_OUTPUT_H

#include "events.h"
#include "string_table.h"
#include "util.h"

FILE *output_create(const char *dir, const char *name);
/* Close it; exits with a message if not everything was written. */
void output_finish(FILE *f, const char *name);
/* Write a file of n elements of size bytes. */
void output_array(const char *dir, const char *name, const void *array, size_t size, size_t n);

struct json_count {
	const char *key;
	uint64_t value;
};

/* Write a string; bytes that are not UTF-8 become U+FFFD. */
void json_string(FILE *f, const char *text);
/* Write members of an object, each followed by a comma. */
void json_number(FILE *f, const char *key, uint64_t value);
void json_text(FILE *f, const char *key, const char *text);
void json_names(FILE *f, const char *key, const char *const *names, size_t n);
void json_counts(FILE *f, const char *key, const struct json_count *counts, size_t n);
/* "kinds" of events, and "counts": how many events of each kind there are */
void json_kinds(FILE *f, const uint64_t count[K_COUNT]);
/* "strings", the last member */
void json_strings(FILE *f, const struct strings *strings);

#endif
