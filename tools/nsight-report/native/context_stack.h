/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The nesting of contexts on one core, and its results: one call for every frame that was ever on
 * the stack, and one interval for every time that a frame was the innermost.
 */
#ifndef NSIGHT_CONTEXT_STACK_H
#define NSIGHT_CONTEXT_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum context_kind { C_THREAD, C_IDLE, C_SYSCALL, C_SOFTIRQ, C_HARDIRQ, C_GAP, C_ABSENT };

/* How the end of a call is known; the order is that of the names in calls/contexts.py */
enum known { MEASURED, INFERRED, MISSING };

/* Written to files unchanged; np.dtype in calls/contexts.py mirrors both. */
struct nsight_call {
	uint64_t start, end;
	uint64_t children; /* ns in calls directly below */
	int64_t arg;
	int64_t parent; /* index of a call of the same core; -1: none */
	int32_t pid, tid;
	uint32_t name; /* thread, hardirq: string; syscall, softirq: number */
	uint16_t cpu;
	uint8_t kind;
	uint8_t depth;
	uint8_t start_known, end_known;
	uint16_t pad;
	uint32_t others; /* softirq: string, who got most packets if no message did; 0: none */
};

struct nsight_interval {
	uint64_t start, end;
	int64_t call; /* index of a call of the same core */
	uint32_t comm;
	uint32_t pad;
};

_Static_assert(sizeof(struct nsight_call) == 64, "np.fromfile relies on 64 bytes");
_Static_assert(sizeof(struct nsight_interval) == 32, "np.fromfile relies on 32 bytes");

#define MAX_DEPTH 32

struct core {
	uint16_t cpu;
	bool started;
	bool base_pending; /* the running thread is not known until the next event */
	uint64_t last;	   /* time of the last event */
	uint64_t since;	   /* start of the current innermost interval */
	uint32_t comm;	   /* name of the thread underneath */
	int depth;
	struct frame {
		size_t call;
		uint64_t key; /* what an exit event must match */
	} frame[MAX_DEPTH];
	struct nsight_call *calls;
	size_t n_calls, cap_calls;
	struct nsight_interval *intervals;
	size_t n_intervals, cap_intervals;
};

static inline struct nsight_call *core_call(const struct core *core, int depth)
{
	return &core->calls[core->frame[depth].call];
}

/* Push a frame; the thread is that of the frame below unless depth is 0. */
struct nsight_call *core_push(struct core *core, uint64_t ts, enum context_kind kind, uint64_t key,
			      uint32_t name, enum known start_known);
/* Pop the innermost frame. */
void core_pop(struct core *core, uint64_t ts, enum known end_known);
/* Add a frame that lasted from the last change of the stack until ts, inside the innermost. */
struct nsight_call *core_insert(struct core *core, uint64_t ts, enum context_kind kind,
				uint32_t name);
/* Move the open interrupts from the stack to frames, without closing them; returns how many. */
int core_lift_irqs(struct core *core, struct frame *frames);
/* Put them back above the frames that were pushed in between: those are what they interrupted. */
void core_put_irqs(struct core *core, const struct frame *frames, int n);

#endif
