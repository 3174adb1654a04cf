// SPDX-License-Identifier: GPL-2.0-only
#include "format_text.h"

#include "util.h"

#include <stdlib.h>
#include <string.h>

/* The parts of a field's line */
struct line {
	const char *type; /* the declaration, up to end, including the name */
	const char *end;
	const char *name;
	size_t name_len;
	struct format_field field;
};

static bool starts(const char *text, const char *with)
{
	return !strncmp(text, with, strlen(with));
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_';
}

/* Reads decimal digits at *p and moves *p past them. */
static bool number(const char **p, uint32_t *value)
{
	uint64_t n = 0;
	const char *from = *p;

	while (**p >= '0' && **p <= '9' && *p - from < 10)
		n = 10 * n + (uint64_t)(*(*p)++ - '0');
	*value = (uint32_t)n;
	return *p > from && n <= UINT32_MAX;
}

/* Reads "\tlabel:NUMBER;" at *p and moves *p past it. */
static bool labelled(const char **p, const char *label, uint32_t *value)
{
	while (**p == '\t' || **p == ' ')
		++*p;
	if (!starts(*p, label))
		return false;
	*p += strlen(label);
	return number(p, value) && *(*p)++ == ';';
}

/* Finds the last word of the declaration, before its dimension if it has one. */
static void find_name(struct line *line)
{
	const char *p = line->end, *open;
	uint32_t n;

	if (p > line->type && p[-1] == ']') {
		open = p - 1;
		while (open > line->type && *open != '[')
			open--;
		p = open++;
		line->field.flags |= FIELD_ARRAY;
		line->field.element = number(&open, &n) && n ? line->field.size / n : 0;
	}
	line->name = p;
	while (line->name > line->type && is_word(line->name[-1]))
		line->name--;
	line->name_len = p - line->name;
}

/* Reads one line: "\tfield:TYPE NAME;\toffset:N;\tsize:N;\tsigned:N;" */
static bool read_line(const char *p, struct line *line)
{
	uint32_t is_signed = 0;

	memset(line, 0, sizeof(*line));
	while (*p == '\t' || *p == ' ')
		p++;
	if (!starts(p, "field:"))
		return false;
	line->type = p + strlen("field:");
	line->end = line->type + strcspn(line->type, ";\n");
	if (*line->end != ';')
		return false;
	p = line->end + 1;
	if (!labelled(&p, "offset:", &line->field.offset) ||
	    !labelled(&p, "size:", &line->field.size))
		return false;
	labelled(&p, "signed:", &is_signed); /* kernels before 2.6.32 have none */
	if (is_signed)
		line->field.flags |= FIELD_SIGNED;
	if (starts(line->type, "__data_loc "))
		line->field.flags |= FIELD_DATA_LOC;
	if (starts(line->type, "__rel_loc "))
		line->field.flags |= FIELD_REL_LOC;
	find_name(line);
	return true;
}

static const char *next_line(const char *p)
{
	p += strcspn(p, "\n");
	return *p ? p + 1 : p;
}

/* Returns the value of line "label: VALUE" at *p and moves *p to the next line; NULL: another
 * line. */
static char *take_value(char **p, const char *label)
{
	char *value = *p + strlen(label), *end;

	if (!starts(*p, label))
		return NULL;
	end = value + strcspn(value, "\n");
	if (!*end)
		return NULL;
	*end = '\0';
	*p = end + 1;
	return value;
}

static bool read_text(struct format *format)
{
	char *p = format->text, *id;
	const char *digits;
	struct line line;

	format->name = take_value(&p, "name: ");
	id = format->name ? take_value(&p, "ID: ") : NULL;
	digits = id;
	if (!id || !*format->name || !number(&digits, &format->id) || *digits)
		return false;
	if (!take_value(&p, "format:"))
		return false;
	format->fields = p;
	for (const char *at = p; *at && !starts(at, "print fmt:"); at = next_line(at))
		if (*at != '\n' && !read_line(at, &line))
			return false;
	return true;
}

static void free_format(struct format *format)
{
	free(format->text);
	free(format->system);
}

static bool parse(struct format *format, const char *system, const char *text, size_t size)
{
	const char *print = memmem(text, size, "\nprint fmt:", 11);

	if (print) /* a C expression, which is not needed here */
		size = print + 1 - text;
	if (memchr(text, 0, size))
		return false;
	format->text = xrealloc(NULL, size + 1, 1);
	memcpy(format->text, text, size);
	format->text[size] = '\0';
	format->system = strcpy(xrealloc(NULL, strlen(system) + 1, 1), system);
	if (read_text(format))
		return true;
	free_format(format);
	return false;
}

bool format_field(const struct format *format, const char *name, struct format_field *field)
{
	size_t len = strlen(name);
	struct line line;

	for (const char *p = format->fields; *p; p = next_line(p)) {
		if (!read_line(p, &line) || line.name_len != len || memcmp(line.name, name, len))
			continue;
		*field = line.field;
		return true;
	}
	return false;
}

bool format_list_add(struct format_list *list, const char *system, const char *text, size_t size)
{
	struct format format = {.order = list->n};

	if (!parse(&format, system, text, size))
		return false;
	GROW(list->formats, list->n, list->cap);
	list->formats[list->n++] = format;
	return true;
}

static int by_id(const void *left, const void *right)
{
	const struct format *a = left, *b = right;

	if (a->id != b->id)
		return a->id < b->id ? -1 : 1;
	return (a->order > b->order) - (a->order < b->order);
}

void format_list_sort(struct format_list *list)
{
	if (list->n)
		qsort(list->formats, list->n, sizeof(*list->formats), by_id);
}

const struct format *format_list_find(const struct format_list *list, uint64_t id)
{
	size_t low = 0, high = list->n;

	while (low < high) { /* finds the first one whose id is not smaller */
		size_t middle = low + (high - low) / 2;

		if (list->formats[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < list->n && list->formats[low].id == id ? &list->formats[low] : NULL;
}

void format_list_free(struct format_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		free_format(&list->formats[i]);
	free(list->formats);
}
