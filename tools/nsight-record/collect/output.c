// SPDX-License-Identifier: GPL-2.0-only
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <zstd.h>

static int base = -1, directory = -1; /* of all files, and of those that are opened next */
static bool failed;

/* Blocks with 10 ms of data shrink to two fifths, large ones to a fifth; higher levels are slow. */
#define ZSTD_LEVEL 1
static ZSTD_CCtx *compressor; /* NULL: nothing is compressed */
static void *compressed;      /* room for a block */

/* Bytes that are allocated on the disk ahead of the data, for each file */
#define MIN_AHEAD (1u << 20)
#define MAX_AHEAD (64u << 20)
static bool is_ext4; /* on this file system space is allocated ahead */
static uint64_t n_open;

/* Space for the last block of each file, which must also fit on a disk that records have filled */
static int reserve = -1;
#define RESERVE_BLOCKS 2 /* of the file system, for each file */
static int unreserved;	 /* why there is none */

static void reserve_release(void)
{
	if (reserve >= 0)
		close(reserve);
	reserve = -1;
}

/* It has no name, so that a killed recorder leaves nothing of it. Returns 0, or the error. */
static int reserve_file(void)
{
	off_t n_files = sysconf(_SC_NPROCESSORS_CONF) + 1;
	struct statvfs s;
	int error;

	if (fstatvfs(base, &s))
		return errno;
	reserve =
		openat(base, "reserve", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (reserve < 0)
		return errno;
	/* On a file system without fallocate(2), the C library writes the blocks. */
	error = unlinkat(base, "reserve", 0)
			? errno
			: posix_fallocate(reserve, 0, n_files * RESERVE_BLOCKS * s.f_frsize);
	if (error)
		reserve_release();
	return error;
}

/* Without it the last counts may be missing. */
static void reserve_take(void)
{
	if (reserve < 0)
		unreserved = reserve_file();
}

void output_directory(const char *path)
{
	struct statfs disk;

	if (mkdir(path, 0700))
		fail(EXIT_OUTPUT, "name a directory that is not there yet", "%s: %s", path,
		     strerror(errno));
	base = directory = open(path, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory < 0)
		fail(EXIT_OUTPUT, "name a directory that is not there yet", "%s: %s", path,
		     strerror(errno));
	is_ext4 = !fstatfs(base, &disk) && disk.f_type == EXT4_SUPER_MAGIC;
	reserve_take();
}

void output_compress(void)
{
	compressor = ZSTD_createCCtx();
	compressed = malloc(ZSTD_compressBound(NSR_MAX_BLOCK));
	if (!compressor || !compressed ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(compressor, ZSTD_c_compressionLevel, ZSTD_LEVEL)))
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
}

bool output_window(const char *name)
{
	if (directory != base)
		close(directory);
	directory = -1;
	if (!mkdirat(base, name, 0700))
		directory = openat(base, name, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory < 0) {
		int error = errno;

		fprintf(stderr, "nsight-collect: %s: %s\n", name, strerror(error));
		unlinkat(base, name, AT_REMOVEDIR);
		errno = error;
		return false;
	}
	reserve_take();
	return true;
}

uint64_t output_free_bytes(uint64_t n_files)
{
	struct statvfs s;

	if (fstatvfs(base, &s))
		return UINT64_MAX;
	/* Some file systems do not count files. */
	return s.f_files && s.f_favail < n_files ? 0 : (uint64_t)s.f_bavail * s.f_frsize;
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
	if (out->fd >= 0 && write(out->fd, &head, sizeof(head)) == sizeof(head)) {
		out->size = sizeof(head);
		n_open++;
		return out;
	}
	if (directory == base)
		fail(EXIT_OUTPUT, "free some disk space", "%s: %s", name, strerror(errno));
	/* The flight recorder goes on: the next window may have room. */
	fprintf(stderr, "nsight-collect: %s: %s\n", name, strerror(errno));
	if (out->fd >= 0) {
		close(out->fd);
		unlinkat(directory, name, 0);
		out->fd = -1;
	}
	failed = true;
	return out;
}

/*
 * Allocate disk space before it is needed: on ext4, a write to allocated blocks takes half the
 * processor time. output_close() gives back the unused rest. The amount is the current size of the
 * file, so that small files and full disks have little of it.
 */
static void allocate(struct output *out, uint64_t bytes)
{
	uint64_t ahead = out->size < MAX_AHEAD ? out->size : MAX_AHEAD;

	if (out->size + bytes <= out->allocated || ahead < MIN_AHEAD)
		return;
	out->allocated = out->size + bytes + ahead;
	if (is_ext4 && output_free_bytes(0) / n_open > 8 * ahead &&
	    fallocate(out->fd, FALLOC_FL_KEEP_SIZE, out->size, bytes + ahead))
		is_ext4 = errno == ENOSPC; /* fails on a file system that was converted from ext2 */
}

/* Whole or not at all, so that data after a block that did not fit is not taken for its rest. */
static bool append(struct output *out, struct iovec *iov, int n)
{
	uint64_t bytes = 0, done = 0;

	if (out->fd < 0)
		return false;
	for (int i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	allocate(out, bytes);
	while (done < bytes) {
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

/* Compresses the parts; returns the bytes in ``compressed``, 0: it failed. */
static size_t compress(const struct iovec *parts, int n, size_t bytes)
{
	ZSTD_outBuffer to = {compressed, ZSTD_compressBound(NSR_MAX_BLOCK), 0};

	if (ZSTD_isError(ZSTD_CCtx_reset(compressor, ZSTD_reset_session_only)) ||
	    ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(compressor, bytes)))
		return 0;
	for (int i = 0; i < n; i++) {
		ZSTD_inBuffer from = {parts[i].iov_base, parts[i].iov_len, 0};
		ZSTD_EndDirective end = i + 1 < n ? ZSTD_e_continue : ZSTD_e_end;
		size_t left;

		do {
			left = ZSTD_compressStream2(compressor, &to, &from, end);
			if (ZSTD_isError(left))
				return 0;
		} while (end == ZSTD_e_end ? left : from.pos < from.size);
	}
	return to.pos;
}

/* Write a block that consists of these parts. */
static bool put_block(struct output *out, enum nsr_block_kind kind, const struct iovec *parts,
		      int n, uint64_t time, uint64_t number)
{
	struct nsr_block block = {
		.mark = NSR_BLOCK_MARK, .kind = kind, .time = time, .number = number};
	struct iovec iov[1 + OUTPUT_PARTS] = {{&block, sizeof(block)}};

	for (int i = 0; i < n; i++) {
		iov[1 + i] = parts[i];
		block.bytes += parts[i].iov_len;
	}
	block.stored_bytes = block.bytes;
	if (compressor && kind == NSR_RECORDS) {
		size_t got = compress(parts, n, block.bytes);

		if (got && got < block.bytes) {
			block.flags = NSR_ZSTD;
			block.stored_bytes = got;
			iov[1] = (struct iovec){compressed, got};
			n = 1;
		}
	}
	/* After a block that did not fit, records would be misplaced; counts are still useful. */
	if (!(out->unwritten && kind == NSR_RECORDS) && append(out, iov, 1 + n))
		return true;
	out->unwritten += block.bytes;
	return false;
}

bool output_block(struct output *out, enum nsr_block_kind kind, const void *data, size_t bytes,
		  uint64_t time, uint64_t number)
{
	struct iovec part = {(void *)data, bytes};

	return put_block(out, kind, &part, 1, time, number);
}

bool output_records(struct output *out, const struct iovec *parts, int n, uint64_t time,
		    uint64_t number)
{
	return put_block(out, NSR_RECORDS, parts, n, time, number);
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
	/* No core's records follow any more. */
	if (kind == NSR_END)
		reserve_release();
	output_block(out, kind, tallies, n * sizeof(*tallies) + sizeof(control->counts), time,
		     control->tail);
}

void output_close(struct output *out)
{
	if (out->fd < 0)
		return;
	n_open--;
	if (out->allocated && ftruncate(out->fd, out->size))
		perror("nsight-collect: room on the disk that was not needed is kept");
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

const char *output_unreserved(void)
{
	return unreserved ? strerror(unreserved) : "";
}

bool output_failed(void)
{
	return failed;
}
