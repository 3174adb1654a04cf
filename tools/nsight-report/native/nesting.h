/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From decoded events to the contexts of every core.
 *
 * Per core a stack of frames: the thread (tid 0: idle) between two context switches, its system
 * call, softirq, hard interrupts, nested by actual time containment. Events of all cores are
 * processed in time order, since a thread takes its system call along when it migrates. If enters
 * or exits are missing (edges of the recording, losses), the stack is repaired; each repair is
 * counted and marked in the call. nesting.c states the rules where they apply.
 */
#ifndef NSIGHT_NESTING_H
#define NSIGHT_NESTING_H

#include "context_stack.h"
#include "events.h"
#include "thread_table.h"

/* Repairs, with their names in contexts.json */
#define REPAIRS(X)                                                                                 \
	X(gaps)		      /* intervals of a core in which perf lost events */                  \
	X(gap_ns)	      /* their sum */                                                      \
	X(lost_without_place) /* losses with unknown core or time */                               \
	X(switch_missing)     /* another thread runs than the last switch showed */                \
	X(syscall_enter_missing)                                                                   \
	X(syscall_exit_missing)                                                                    \
	X(softirq_entry_missing)                                                                   \
	X(softirq_exit_missing)                                                                    \
	X(hardirq_entry_missing)                                                                   \
	X(hardirq_exit_missing)                                                                    \
	X(too_deep)	 /* frames dropped because MAX_DEPTH were open: exits must be missing */   \
	X(cut_at_start)	 /* contexts already open when their core's recording starts */            \
	X(cut_at_end)	 /* contexts still open when the recording ends */                         \
	X(cut_by_switch) /* system calls cut where their thread was switched out */

struct repairs {
#define X(name) uint64_t name;
	REPAIRS(X)
#undef X
};

struct builder {
	struct nsight_event *events;
	size_t n;
	size_t *next_sys; /* per event: the same thread's next system call event */
	struct thread_table threads;
	struct core *cores[NSIGHT_NO_CPU];
	struct repairs repairs;
	bool have_sched_switch;
};

/* Set events and n (events in time order), zero the rest; then calls and intervals are in cores. */
void nest(struct builder *b);

#endif
