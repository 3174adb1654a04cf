/* SPDX-License-Identifier: GPL-2.0-only */
/* The files of a recording; tools/bpf/record.h says what is in them. */
#ifndef NSIGHT_OUTPUT_H
#define NSIGHT_OUTPUT_H

#include "../../bpf/fail.h"
#include "../../bpf/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define OUTPUT_PARTS 16 /* of a block of records at most */

struct output {
	int fd; /* -1: there is none */
	uint32_t cpu;
	uint64_t size;		       /* bytes of whole blocks */
	uint64_t allocated;	       /* bytes that the disk has room for */
	uint64_t written[NSR_N_TYPES]; /* records in the file, by type */
	uint64_t unwritten;	       /* bytes that the disk did not take */
	uint64_t units;		       /* of the machine's records, which no ring numbers */
};

/* Make the directory, which must not be there. */
void output_directory(const char *path);
/* Compress records from now on. */
void output_compress(void);
/* A directory in that one, for the files that are opened next. False: it cannot be made. */
bool output_window(const char *name);
/* What the disk still takes; 0 if it does not take n_files more files */
uint64_t output_free_bytes(uint64_t n_files);
/* The file of a core, or of the machine (NSR_NO_CPU), in that directory. One of a window that
 * cannot be made takes no block. */
struct output *output_open(uint32_t cpu);
/*
 * Append a block. What the disk does not take is counted, and no more records are written to that
 * file. Whether it was taken.
 */
bool output_block(struct output *out, enum nsr_block_kind kind, const void *data, size_t bytes,
		  uint64_t time, uint64_t number);
/* As output_block(), for records that lie in several places. */
bool output_records(struct output *out, const struct iovec *parts, int n, uint64_t time,
		    uint64_t number);
void output_counts(struct output *out, const struct nsr_control *control, enum nsr_block_kind kind,
		   uint64_t time);
void output_close(struct output *out);
/* Print the counts of a core as a member of a JSON object. */
void output_summary(const struct output *out, const struct nsr_control *control, bool more);
/* Whether some file lacks something. */
bool output_failed(void);
/* Of the next window nothing is missing yet. */
void output_forgive(void);

#endif
