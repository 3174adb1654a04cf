// SPDX-License-Identifier: GPL-2.0-only
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE (8u << 20)

void die(int code, const char *hint, const char *fmt, ...)
{
	va_list ap;

	fputs("error: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	if (hint)
		fprintf(stderr, "hint: %s\n", hint);
	exit(code);
}

void *xrealloc(void *p, size_t n, size_t size)
{
	void *q = reallocarray(p, n, size);

	if (!q)
		die(EXIT_IO, "record for a shorter time, or analyse on a machine with more memory",
		    "out of memory at %zu elements of %zu bytes", n, size);
	/*
	 * Faults of small pages take longer than the work on an event. Applies to the whole
	 * mapping, since mremap() does not move two halves.
	 */
	if (n * size >= HUGE) {
		uintptr_t page = sysconf(_SC_PAGESIZE), start = (uintptr_t)q & -page;

		madvise((void *)start, ((uintptr_t)q + n * size - start + page - 1) & -page,
			MADV_HUGEPAGE);
	}
	return q;
}

static void opened(struct reader *r, const char *unreadable, const char *irregular)
{
	struct stat st;

	if (r->fd < 0 || fstat(r->fd, &st))
		die(EXIT_BAD_INPUT, unreadable, "%s: %s", r->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		die(EXIT_BAD_INPUT, irregular, "%s: not a regular file", r->path);
	r->size = st.st_size;
	r->buf = xrealloc(NULL, 1, READER_WINDOW);
}

void reader_open(struct reader *r, const char *path)
{
	memset(r, 0, sizeof(*r));
	r->path = path;
	/* O_NONBLOCK: opening a FIFO that somebody put there must not block */
	r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	opened(r, "name a perf.data file that you may read",
	       "name the perf.data file, or the directory of perf --kcore");
}

void reader_open_at(struct reader *r, int dir, const char *name)
{
	static const char hint[] = "copy the whole capture directory, or record again";

	memset(r, 0, sizeof(*r));
	r->path = name;
	r->fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	if (r->fd < 0 && errno == ELOOP)
		die(EXIT_BAD_INPUT, hint, "%s: not a regular file", name);
	opened(r, hint, hint);
}

const unsigned char *reader_at(struct reader *r, uint64_t off, size_t len)
{
	size_t want = READER_WINDOW;

	if (off > r->size || len > r->size - off || len > READER_WINDOW)
		return NULL;
	if (off >= r->start && off + len <= r->start + r->len)
		return r->buf + (off - r->start);

	if (off < r->start || off > r->start + r->len)
		want = len > READER_JUMP ? len : READER_JUMP;
	r->start = off;
	r->len = 0;
	while (r->len < want && off + r->len < r->size) {
		ssize_t got = pread(r->fd, r->buf + r->len, want - r->len, off + r->len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			die(EXIT_IO, "check the disk", "%s: %s", r->path, strerror(errno));
		if (!got) { /* the file shrank after reader_open() */
			r->size = off + r->len;
			break;
		}
		r->len += got;
	}
	return len <= r->len ? r->buf : NULL;
}

void reader_close(struct reader *r)
{
	close(r->fd);
	free(r->buf);
}
