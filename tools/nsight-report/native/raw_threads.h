/* SPDX-License-Identifier: GPL-2.0-only */
/* Names and processes of threads at any time, from all files of a recording. */
#ifndef NSIGHT_RAW_THREADS_H
#define NSIGHT_RAW_THREADS_H

#include "raw_file.h"
#include "string_table.h"
#include "util.h"

/* A thread at the current point of the events */
struct raw_thread {
	uint64_t entered; /* begin of its last reported system call */
	uint32_t name;	  /* string */
	int32_t pid;	  /* + 1; 0: unknown */
	uint32_t cpu;	  /* on which it runs, plus 1; 0: none */
	uint32_t n_tasks; /* in raw_threads.tasks */
	size_t first_task;
	bool in_syscall;
	bool waits; /* in a system call; it is only known that it waited */
	int16_t waits_in;
};

struct raw_threads {
	struct raw_task *tasks; /* by thread and time */
	size_t n_tasks;
	struct raw_thread *thread; /* by number; only used entries take memory */
};

/* Built from the tasks of files, which are moved out of them. Each thread starts as in its first
 * record. */
void raw_threads_init(struct raw_threads *threads, struct raw_file *files, size_t n_files,
		      struct strings *strings);

static inline struct raw_thread *raw_thread(const struct raw_threads *threads, int32_t tid)
{
	return &threads->thread[tid & RAW_TID_MASK];
}

/* -1: unknown */
static inline int32_t raw_pid(const struct raw_threads *threads, int32_t tid)
{
	if (tid <= 0)
		return tid;
	return raw_thread(threads, tid)->pid - 1;
}

/* What the last record up to ts contains about a thread, else the first one after; name 0, pid -1:
 * unknown. */
void raw_threads_at(const struct raw_threads *threads, uint32_t tid, uint64_t ts, uint32_t *name,
		    int32_t *pid);

#endif
