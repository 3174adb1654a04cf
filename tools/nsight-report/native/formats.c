// SPDX-License-Identifier: GPL-2.0-only
#include "formats.h"

#include "event_fields.h"
#include "tracepoint_fields.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FORMAT  (256u << 10) /* the largest one of a 6.18 kernel has 20 kB */
#define MAX_FORMATS 65536u

static void parse_format(struct format_list *list, const char *system, const char *text,
			 size_t size, struct formats *out)
{
	out->n_formats++;
	if (!format_list_add(list, system, text, size))
		out->n_broken++;
}

/* A position in the tracing data, which is read strictly forward */
struct cursor {
	struct reader *r;
	uint64_t off, end;
	bool failed;
};

static const unsigned char *take(struct cursor *c, uint64_t len)
{
	const unsigned char *p = NULL;

	if (!c->failed && len <= c->end - c->off)
		p = reader_at(c->r, c->off, len);
	if (p)
		c->off += len;
	else
		c->failed = true;
	return p;
}

static uint32_t take32(struct cursor *c)
{
	const unsigned char *p = take(c, 4);

	return p ? load32(p) : 0;
}

/* Skip a blob with a u64 length. */
static void skip_blob(struct cursor *c)
{
	const unsigned char *p = take(c, 8);
	uint64_t len = p ? load64(p) : 0;

	if (c->failed || len > c->end - c->off)
		c->failed = true;
	else
		c->off += len;
}

/* A NUL-terminated string of at most max - 1 bytes. */
static void take_string(struct cursor *c, char *out, size_t max)
{
	for (size_t i = 0; i < max; i++) {
		const unsigned char *p = take(c, 1);

		out[i] = p ? *p : '\0';
		if (!out[i])
			return;
	}
	out[max - 1] = '\0';
	c->failed = true;
}

/*
 * The layout of trace.dat version 0.5/0.6 up to the event formats, see
 * tools/perf/util/trace-event-info.c of the kernel tree.
 */
static void read_tracing_data(struct perf_file *pf, struct format_list *list, struct formats *out)
{
	uint64_t off = pf->feature[FEAT_TRACING_DATA].off;
	struct cursor c = {&pf->r, off, off + pf->feature[FEAT_TRACING_DATA].size, false};
	const unsigned char *p = take(&c, 10);
	uint32_t n_systems;
	char text[256];

	if (!p || memcmp(p, "\x17\x08\x44tracing", 10)) {
		out->truncated = 1;
		return;
	}
	take_string(&c, text, sizeof(text)); /* version */
	take(&c, 1 + 1 + 4);		     /* byte order, size of long, page size */
	for (int i = 0; i < 2; i++) {	     /* header_page, header_event */
		take_string(&c, text, sizeof(text));
		skip_blob(&c);
	}
	for (uint32_t n = take32(&c); n && !c.failed; n--) /* ftrace's own events */
		skip_blob(&c);
	n_systems = take32(&c);
	for (uint32_t s = 0; s < n_systems && !c.failed; s++) {
		take_string(&c, text, sizeof(text));
		for (uint32_t n = take32(&c); n && !c.failed && out->n_formats < MAX_FORMATS; n--) {
			uint64_t size;

			p = take(&c, 8);
			size = p ? load64(p) : UINT64_MAX;
			p = size <= MAX_FORMAT ? take(&c, size) : NULL;
			if (p)
				parse_format(list, text, (const char *)p, size, out);
			else
				c.failed = true;
		}
	}
	out->truncated = c.failed;
}

/* dir/SYSTEM/EVENT */
static void read_format_file(int system_fd, const char *system, const char *name,
			     struct format_list *list, struct formats *out)
{
	int fd = openat(system_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	struct stat st;
	char *buf = NULL;
	ssize_t len = -1;

	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
		buf = xrealloc(NULL, MAX_FORMAT, 1);
		len = read(fd, buf, MAX_FORMAT);
	}
	if (len > 0)
		parse_format(list, system, buf, len, out);
	else
		out->n_broken++;
	free(buf);
	if (fd >= 0)
		close(fd);
}

static void read_format_dir(const char *path, struct format_list *list, struct formats *out)
{
	DIR *dir = opendir(path), *sub;
	struct dirent *d, *e;

	if (!dir)
		die(EXIT_BAD_INPUT,
		    "give the directory with copies of the recorded events' formats",
		    "%s: cannot be read as a directory", path);
	while ((d = readdir(dir))) {
		int fd;

		if (d->d_name[0] == '.')
			continue;
		fd = openat(dirfd(dir), d->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
		sub = fd < 0 ? NULL : fdopendir(fd);
		while (sub && (e = readdir(sub)) && out->n_formats < MAX_FORMATS)
			if (e->d_name[0] != '.')
				read_format_file(fd, d->d_name, e->d_name, list, out);
		if (sub)
			closedir(sub);
	}
	closedir(dir);
}

/* Give each tracepoint event that has no format yet the one with its id; true: all have one. */
static bool assign(struct perf_file *pf, struct format_list *list, struct strings *strings,
		   bool wide)
{
	bool all = true;

	format_list_sort(list);
	for (uint32_t i = 0; i < pf->n_evts; i++) {
		struct perf_evt *evt = &pf->evts[i];
		const struct format *event;

		if (evt->attr.type != PERF_TYPE_TRACEPOINT || evt->fate != FATE_NO_FORMAT)
			continue;
		event = format_list_find(list, evt->attr.config);
		if (!event) {
			all = false;
			continue;
		}
		snprintf(evt->name, sizeof(evt->name), "%s:%s", event->system, event->name);
		evt->plan = event_plan(event, evt, strings);
		if (wide && !evt->plan)
			evt->plan = wide_plan(event, evt);
	}
	return all;
}

void formats_resolve(struct perf_file *pf, const char *dir, struct strings *strings, bool wide,
		     struct formats *out)
{
	struct format_list list = {0};
	bool all;

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < pf->n_evts; i++)
		pf->evts[i].fate = pf->evts[i].attr.type == PERF_TYPE_TRACEPOINT ? FATE_NO_FORMAT
										 : FATE_UNUSED;
	if (pf->feature[FEAT_TRACING_DATA].size)
		read_tracing_data(pf, &list, out);
	all = assign(pf, &list, strings, wide);
	if (!all && dir) {
		read_format_dir(dir, &list, out);
		assign(pf, &list, strings, wide);
	}
	format_list_free(&list);
}
