/* SPDX-License-Identifier: GPL-2.0-only */
/* The files of a recording; tools/bpf/record.h describes their content. */
#ifndef NSIGHT_OUTPUT_H
#define NSIGHT_OUTPUT_H

#include "../../bpf/fail.h"
#include "../../bpf/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define OUTPUT_PARTS 16 /* parts of a block of records at most */

struct output {
	int fd; /* -1: there is none */
	uint32_t cpu;
	uint64_t size;		       /* bytes of whole blocks */
	uint64_t allocated;	       /* bytes that are allocated on the disk */
	uint64_t written[NSR_N_TYPES]; /* records in the file, by type */
	uint64_t unwritten;	       /* bytes that could not be written to the disk */
	uint64_t units;		       /* units of the machine's records, which no ring numbers */
};

/* Make the directory, which must not exist yet. */
void output_directory(const char *path);
/* Compress records from now on. */
void output_compress(void);
/* Make a directory in that one, for the files that are opened next. False: it cannot be made, see
 * errno. */
bool output_window(const char *name);
/* Free space of the disk in bytes; 0 if it has no room for n_files more files */
uint64_t output_free_bytes(uint64_t n_files);
/* Open the file of a core, or of the machine (NSR_NO_CPU), in that directory. If a window's file
 * cannot be made, no block is written to it. */
struct output *output_open(uint32_t cpu);
/*
 * Append a block. Bytes that cannot be written to the disk are counted, and no more records are
 * written to that file. Returns whether the block was written.
 */
bool output_block(struct output *out, enum nsr_block_kind kind, const void *data, size_t bytes,
		  uint64_t time, uint64_t number);
/* Like output_block(), for records that lie in several places. */
bool output_records(struct output *out, const struct iovec *parts, int n, uint64_t time,
		    uint64_t number);
void output_counts(struct output *out, const struct nsr_control *control, enum nsr_block_kind kind,
		   uint64_t time);
void output_close(struct output *out);
/* Print the counts of a core as a member of a JSON object. */
void output_summary(const struct output *out, const struct nsr_control *control, bool more);
/* Why no disk space was reserved for the last block of each file; "": it was. */
const char *output_unreserved(void);
/* Whether any file is incomplete. */
bool output_failed(void);
/* Start again for the next window: nothing of it is missing yet. */
void output_forgive(void);

#endif
