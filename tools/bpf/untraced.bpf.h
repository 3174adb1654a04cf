/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switches that no tracepoint shows. Some hosts run no program at a tracepoint while a thread of
 * their first process is the current one: its switch away is not seen, only the next one on that
 * core, from a thread that seems never to have got it. The scheduler notes when it did.
 */
#ifndef NSIGHT_UNTRACED_BPF_H
#define NSIGHT_UNTRACED_BPF_H

#include "ring.bpf.h"

#define TASK_REPORT 0x7f

/* A thread that got the core on a tracepoint has an arrival time that differs by less than this. */
#define SAME_ARRIVAL_NS 50000

/* CLOCK_MONOTONIC at a time of the run queue's clock, which was read when this switch began; 0: it
 * is not in the past. */
static __always_inline __u64 monotonic_of(__u64 clock, __u64 then, __u64 now)
{
	return then && then <= clock && clock - then < now ? now - (clock - then) : 0;
}

/*
 * When did prev get the core that the last switch gave another thread? 0: unknown. The idle thread
 * has no arrival time. It got the core when the other one was last accounted for, unless that one
 * has run elsewhere since.
 */
static __always_inline __u64 untraced_time(struct nsr_control *c, struct task_struct *prev,
					   __u64 now)
{
	struct rq *queue = prev->se.cfs_rq->rq;
	struct task_struct *gone = (struct task_struct *)c->running.task;
	__u64 arrival, clock = queue->clock;

	if (prev->pid)
		return monotonic_of(clock, prev->sched_info.last_arrival, now);
	arrival = monotonic_of(clock, BPF_CORE_READ(gone, sched_info.last_arrival), now);
	if (arrival + SAME_ARRIVAL_NS < c->running.since ||
	    arrival > c->running.since + SAME_ARRIVAL_NS)
		return 0;
	return monotonic_of(queue->clock_task, BPF_CORE_READ(gone, se.exec_start), now);
}

/* Its state now: it may have been woken since. */
static __always_inline __u64 untraced_state(struct nsr_control *c)
{
	struct task_struct *gone = (struct task_struct *)c->running.task;

	return (BPF_CORE_READ(gone, __state) & TASK_REPORT) | NSR_UNTRACED;
}

static __always_inline void runs(struct nsr_control *c, struct task_struct *task, __u64 now)
{
	c->running.task = (__u64)task;
	c->running.tid = (__u32)task->pid;
	c->running.since = now;
}

static __always_inline void put_untraced(struct nsr_control *c, struct task_struct *next,
					 __u64 time)
{
	put1(c, NSR_SWITCH, time,
	     (__u64)next->pid | c->running.tid << NSR_TID_BITS |
		     untraced_state(c) << 2 * NSR_TID_BITS);
}

/* A core that begins to idle while it seems to run a thread switched to the idle thread just now. */
static __always_inline void idle_begins(struct nsr_control *c, __u64 now)
{
	struct task_struct *idle = bpf_get_current_task_btf();

	if (!c->running.task || c->running.task == (__u64)idle || idle->pid ||
	    c->running.since < watched_from)
		return;
	put_untraced(c, idle, now);
	runs(c, idle, now);
}

/* Before the record of a switch: one of the switch before it, if that was not seen. */
static __always_inline void switch_follows(struct nsr_control *c, struct task_struct *prev,
					   struct task_struct *next, __u64 now)
{
	__u64 time;

	/* The thread's address is compared, since execve(2) changes its number. */
	if (c->running.task && c->running.task != (__u64)prev && c->running.since >= watched_from &&
	    bpf_core_field_exists(struct rq, clock) &&
	    bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	    bpf_core_field_exists(struct cfs_rq, rq) &&
	    bpf_core_field_exists(prev->sched_info.last_arrival)) {
		time = untraced_time(c, prev, now);
		if (time > c->running.since)
			put_untraced(c, prev, time);
	}
	runs(c, next, now);
}

#endif
