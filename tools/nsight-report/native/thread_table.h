/* SPDX-License-Identifier: GPL-2.0-only */
/* What is known about each thread at the current point of the event stream. */
#ifndef NSIGHT_THREAD_TABLE_H
#define NSIGHT_THREAD_TABLE_H

#include "events.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NO_EVENT SIZE_MAX

struct thread {
	int32_t tid, pid; /* pid -1: unknown */
	uint32_t comm;	  /* string; 0: unknown */
	bool used, in_syscall, forked;
	uint8_t syscall_start_known; /* enum known */
	int64_t syscall, syscall_arg;
	uint64_t woken;	 /* when it was last woken */
	size_t next_sys; /* its next sys_enter or sys_exit in the events, or NO_EVENT */
};

struct thread_table {
	struct thread *slot;
	size_t mask, n;
};

void threads_init(struct thread_table *t);
/* Find the thread, or create it. The pointer is valid until the next call. */
struct thread *threads_get(struct thread_table *t, int32_t tid);
/* Take names and processes of threads from every event that has them. */
void threads_learn(struct thread_table *t, const struct nsight_event *ev);
/* A thread that calls exec and is not the leader continues with the leader's number. */
void threads_exec(struct thread_table *t, const struct nsight_event *ev);

#endif
