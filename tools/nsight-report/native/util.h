/* SPDX-License-Identifier: GPL-2.0-only */
/* Shared by the programs: errors with a fix, checked allocation, bounded reading. */
#ifndef NSIGHT_UTIL_H
#define NSIGHT_UTIL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* The same codes as nsight_report/errors.py */
enum { EXIT_USAGE = 2, EXIT_BAD_INPUT = 3, EXIT_MISSING = 4, EXIT_IO = 5 };

/* Print "error: ..." and, unless it is NULL, "hint: ..."; exit with code. */
void die(int code, const char *hint, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

void *xrealloc(void *p, size_t n, size_t size);

/* Make room for one more element in a growing array. */
#define GROW(array, n, cap)                                                                        \
	do {                                                                                       \
		if ((n) == (cap)) {                                                                \
			(cap) = (cap) ? (cap)*2 : 64;                                              \
			(array) = xrealloc((array), (cap), sizeof(*(array)));                      \
		}                                                                                  \
	} while (0)

/*
 * Reads a file through a window of READER_WINDOW bytes. Not mmap: if a file shrinks while it is
 * read, that must give an error, not SIGBUS.
 */
#define READER_WINDOW (4u << 20)
/* Bytes to read at a place that does not follow the last read: a file may cause many jumps. */
#define READER_JUMP (64u << 10)

struct reader {
	int fd;
	const char *path;
	uint64_t size;
	uint64_t start; /* file offset of buf[0] */
	size_t len;	/* valid bytes in buf */
	unsigned char *buf;
};

void reader_open(struct reader *r, const char *path);
/* Open a file in a directory. It must be a regular file, not a link. */
void reader_open_at(struct reader *r, int dir, const char *name);
/*
 * The bytes [off, off + len), or NULL if not all of them are in the file. len is at most
 * READER_WINDOW. The pointer is valid until the next call.
 */
const unsigned char *reader_at(struct reader *r, uint64_t off, size_t len);
void reader_close(struct reader *r);

static inline uint16_t load16(const void *p)
{
	uint16_t v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

static inline uint32_t load32(const void *p)
{
	uint32_t v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

static inline uint64_t load64(const void *p)
{
	uint64_t v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

#endif
