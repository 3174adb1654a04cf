/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Included before each source of a program (-DFUZZ_PROGRAM -include intercept.h), so that its
 * main() can run repeatedly in one process: blocks.c and files.c replace functions of the C
 * library, and release everything afterwards.
 */
#ifndef FUZZ_INTERCEPT_H
#define FUZZ_INTERCEPT_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int program_main(int argc, char **argv);
void fuzz_exit(int code) __attribute__((noreturn));

void *fuzz_calloc(size_t n, size_t size);
void *fuzz_reallocarray(void *p, size_t n, size_t size);
void fuzz_free(void *p);

FILE *fuzz_fopen(const char *path, const char *mode);
int fuzz_fclose(FILE *f);
int fuzz_open(const char *path, int flags);
int fuzz_openat(int dir, const char *name, int flags);
int fuzz_close(int fd);
ssize_t fuzz_pread(int fd, void *buf, size_t n, off_t off);
int fuzz_fstatat(int dir, const char *name, struct stat *st, int flags);
DIR *fuzz_fdopendir(int fd);
struct dirent *fuzz_readdir(DIR *dir);
int fuzz_closedir(DIR *dir);
extern FILE *fuzz_stdout, *fuzz_stderr;

#ifdef FUZZ_PROGRAM
#define main	     program_main
#define exit	     fuzz_exit
#define calloc	     fuzz_calloc
#define reallocarray fuzz_reallocarray
#define free	     fuzz_free
#define fopen	     fuzz_fopen
#define fclose	     fuzz_fclose
#define open	     fuzz_open
#define openat	     fuzz_openat
#define close	     fuzz_close
#define pread	     fuzz_pread
#define fstatat	     fuzz_fstatat
#define fdopendir    fuzz_fdopendir
#define readdir	     fuzz_readdir
#define closedir     fuzz_closedir
#undef stdout
#undef stderr
#define stdout fuzz_stdout
#define stderr fuzz_stderr

/* Variables are in separate sections, which restart.c resets. */
#pragma clang section bss = "fuzz_bss" data = "fuzz_data"
#endif

#endif
