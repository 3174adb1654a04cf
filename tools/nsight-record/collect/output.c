// SPDX-License-Identifier: GPL-2.0-only
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zstd.h>

static int base = -1, directory = -1; /* of all files, and of the ones that are opened */
static bool failed;

/* Blocks of what came in 10 ms shrink to two fifths, large ones to a fifth; higher levels are
 * slower. */
#define ZSTD_LEVEL 1
static ZSTD_CCtx *compressor; /* NULL: nothing is compressed */
static void *compressed;      /* room for a block */

void fail(int code, const char *hint, const char *format, ...)
{
	va_list list;

	fflush(stdout); /* in a log of both, what failed stands last */
	fputs("error: ", stderr);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, "\nhint: %s\n", hint);
	exit(code);
}

void output_directory(const char *path)
{
	if (mkdir(path, 0700))
		fail(EXIT_OUTPUT, "name a directory that is not there yet", "%s: %s", path,
		     strerror(errno));
	base = directory = open(path, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory < 0)
		fail(EXIT_OUTPUT, "name a directory that is not there yet", "%s: %s", path,
		     strerror(errno));
}

void output_compress(void)
{
	compressor = ZSTD_createCCtx();
	compressed = malloc(ZSTD_compressBound(NSR_MAX_BLOCK));
	if (!compressor || !compressed)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
}

void output_window(const char *name)
{
	if (directory != base)
		close(directory);
	directory = -1;
	if (!mkdirat(base, name, 0700))
		directory = openat(base, name, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory < 0)
		fail(EXIT_OUTPUT, "look at the directory: it must stay the recorder's", "%s: %s",
		     name, strerror(errno));
}

uint64_t output_free_bytes(void)
{
	struct statvfs s;

	return fstatvfs(base, &s) ? UINT64_MAX : (uint64_t)s.f_bavail * s.f_frsize;
}

void output_forgive(void)
{
	failed = false;
}

struct output *output_open(uint32_t cpu)
{
	struct nsr_file head = {.magic = NSR_MAGIC, .version = NSR_VERSION, .cpu = cpu};
	struct output *out = calloc(1, sizeof(*out));
	char name[32] = "machine.records";

	if (cpu != NSR_NO_CPU)
		snprintf(name, sizeof(name), "cpu-%" PRIu32 ".records", cpu);
	if (!out)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	out->cpu = cpu;
	out->fd =
		openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (out->fd < 0 || write(out->fd, &head, sizeof(head)) != sizeof(head))
		fail(EXIT_OUTPUT, "free some disk space", "%s: %s", name, strerror(errno));
	out->size = sizeof(head);
	return out;
}

/* Whole or not at all, so that what follows a block that did not fit is not taken for its rest. */
static bool append(struct output *out, struct iovec *iov, int n)
{
	uint64_t bytes = 0, done = 0;

	for (int i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	while (done < bytes && !out->unwritten) {
		ssize_t got = writev(out->fd, iov, n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		done += got;
		for (; n && (size_t)got >= iov->iov_len; iov++, n--)
			got -= iov->iov_len;
		if (n) {
			iov->iov_base = (char *)iov->iov_base + got;
			iov->iov_len -= got;
		}
	}
	if (done == bytes) {
		out->size += bytes;
		return true;
	}
	if (!failed)
		fprintf(stderr,
			"error: cpu %" PRIu32
			": %s\nhint: free some disk space, or record elsewhere\n",
			out->cpu, strerror(errno));
	failed = true;
	if (ftruncate(out->fd, out->size) || lseek(out->fd, out->size, SEEK_SET) < 0)
		perror("nsight-collect: what did not fit is left in the file");
	return false;
}

bool output_block(struct output *out, enum nsr_block_kind kind, const void *data, size_t bytes,
		  uint64_t time, uint64_t number)
{
	struct nsr_block block = {.mark = NSR_BLOCK_MARK,
				  .kind = kind,
				  .stored_bytes = bytes,
				  .bytes = bytes,
				  .time = time,
				  .number = number};
	struct iovec iov[] = {{&block, sizeof(block)}, {(void *)data, bytes}};

	if (compressor && kind == NSR_RECORDS) {
		size_t got =
			ZSTD_compressCCtx(compressor, compressed, ZSTD_compressBound(NSR_MAX_BLOCK),
					  data, bytes, ZSTD_LEVEL);

		if (!ZSTD_isError(got) && got < bytes) {
			block.flags = NSR_ZSTD;
			block.stored_bytes = iov[1].iov_len = got;
			iov[1].iov_base = compressed;
		}
	}
	/* After a block that did not fit, records would stand in the wrong place; counts still
	 * tell. */
	if (!(out->unwritten && kind == NSR_RECORDS) && append(out, iov, 2))
		return true;
	out->unwritten += bytes;
	return false;
}

void output_counts(struct output *out, const struct nsr_control *control, enum nsr_block_kind kind,
		   uint64_t time)
{
	struct nsr_tally tallies[NSR_N_TYPES + (NSR_N_COUNTS * 8 + sizeof(struct nsr_tally) - 1) /
						       sizeof(struct nsr_tally)];
	size_t n = 0;

	for (uint64_t type = 0; type < NSR_N_TYPES; type++)
		if (control->produced[type])
			tallies[n++] = (struct nsr_tally){type, control->produced[type],
							  control->lost[type]};
	memcpy(&tallies[n], control->counts, sizeof(control->counts));
	output_block(out, kind, tallies, n * sizeof(*tallies) + sizeof(control->counts), time,
		     control->tail);
}

void output_close(struct output *out)
{
	if (close(out->fd)) {
		perror("nsight-collect");
		failed = true;
	}
}

void output_summary(const struct output *out, const struct nsr_control *control, bool more)
{
	const char *sep = "";

	printf(" \"%" PRIu32 "\": {\"bytes\": %" PRIu64 ", \"unwritten_bytes\": %" PRIu64
	       ", \"types\": {",
	       out->cpu, out->size, out->unwritten);
	for (uint32_t type = 0; type < NSR_N_TYPES; type++) {
		if (!control->produced[type])
			continue;
		printf("%s\"%" PRIu32 "\": [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", sep, type,
		       (uint64_t)control->produced[type], (uint64_t)control->lost[type],
		       out->written[type]);
		sep = ", ";
	}
	printf("}}%s\n", more ? "," : "");
}

bool output_failed(void)
{
	return failed;
}
