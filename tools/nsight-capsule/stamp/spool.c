// SPDX-License-Identifier: GPL-2.0-only
#include "spool.h"
#include "fail.h"
#include "../../bpf/capsule.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_RECORDS 8192

static struct nsc_record waiting[MOST_RECORDS];
static size_t n_waiting;
static struct ring_buffer *ring_buffer;
static struct spool total;
static int file = -1;
static bool full;

static bool put(const void *data, size_t bytes)
{
	const char *from = data;

	while (bytes) {
		ssize_t n = write(file, from, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		from += n;
		bytes -= n;
	}
	return true;
}

static void flush(void)
{
	if (!full && !put(waiting, n_waiting * sizeof(*waiting))) {
		full = true; /* the file may end with a part of a record, which readers skip */
		fprintf(stderr, "warning: DIR/capsules: %s\n", strerror(errno));
	}
	if (full)
		total.unwritten += n_waiting;
	else
		total.written += n_waiting;
	n_waiting = 0;
}

static int on_record(void *context, void *data, size_t bytes)
{
	(void)context;
	if (bytes < sizeof(*waiting))
		return 0;
	waiting[n_waiting++] = *(const struct nsc_record *)data;
	if (n_waiting == MOST_RECORDS)
		flush();
	return 0;
}

void spool_open(const char *dir, int ring, uint16_t session)
{
	struct nsc_file header = {.magic = NSC_FILE_MAGIC,
				  .record_size = sizeof(struct nsc_record),
				  .session = session};
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	header.started = now.tv_sec * 1000000000ull + now.tv_nsec;
	if (at < 0)
		fail(EXIT_OUTPUT, "make it first", "%s: %s", dir, strerror(errno));
	file = openat(at, "capsules", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	close(at);
	if (file < 0 || !put(&header, sizeof(header)))
		fail(EXIT_OUTPUT, "give a new directory", "%s/capsules: %s", dir, strerror(errno));
	ring_buffer = ring_buffer__new(ring, on_record, NULL, NULL);
	if (!ring_buffer)
		fail(EXIT_REFUSED, NULL, "ring buffer: %s", strerror(errno));
}

void spool_take(void)
{
	ring_buffer__consume(ring_buffer);
	flush();
}

struct spool spool_close(void)
{
	spool_take();
	ring_buffer__free(ring_buffer);
	if (close(file) && !full)
		fprintf(stderr, "warning: DIR/capsules: %s\n", strerror(errno));
	return total;
}
