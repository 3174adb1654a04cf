/* SPDX-License-Identifier: GPL-2.0-only */
/* Runs a program as a function: with files in memory, and without leaving anything behind. */
#ifndef FUZZ_RESTART_H
#define FUZZ_RESTART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the program wrote to a file, until the next run; size 0: nothing. */
struct written {
	const uint8_t *data;
	size_t size;
};

/* The file that the program finds under this name, in whatever directory. */
void restart_file(const char *name, const uint8_t *data, size_t size);
/* Remove all files. */
void restart_no_files(void);
/*
 * Run its main() with these arguments, up to NULL. It must end with 0 and say nothing on stderr, or
 * end with EXIT_BAD_INPUT and say why; false: it refused the input. All else is a finding.
 */
bool restart_run(char **argv);
/* "stdout", or the last part of a path. */
struct written restart_written(const char *name);
/* End this process in the way that libFuzzer expects for a finding. */
void restart_broken(const char *why) __attribute__((noreturn));
/* As other programs rely on them: whole events of known kinds, in order of time. */
void restart_check_events(struct written events);

/* Between restart.c and its parts */
void blocks_release(void);
void files_begin(void);
void files_release(void);
/* The number of invalid bytes after the valid bytes of a block. */
void blocks_end_at(unsigned char *end, size_t beyond);

#endif
