/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switches and wake-ups that no tracepoint shows. Some hosts run no program at a tracepoint while a
 * thread of their first process is the current one: its switch away is not seen, only the next one
 * on that core, from a thread that seems never to have got it; nor is a wake-up by it, or by an
 * interrupt meanwhile. The scheduler notes when a thread got a core, and when it became runnable.
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

/* When the fair scheduler last gave the thread a core, by its sums. It sums up before each switch,
 * and not for real-time threads. */
static __always_inline __u64 picked_at(struct task_struct *task, __u64 clock_task, __u64 now)
{
	if (!bpf_core_field_exists(task->se.prev_sum_exec_runtime))
		return 0;
	return monotonic_of(clock_task,
			    BPF_CORE_READ(task, se.exec_start) -
				    (BPF_CORE_READ(task, se.sum_exec_runtime) -
				     BPF_CORE_READ(task, se.prev_sum_exec_runtime)),
			    now);
}

static __always_inline bool is_last_arrival(struct nsr_control *c, __u64 time)
{
	return time + SAME_ARRIVAL_NS >= c->running.since &&
	       time <= c->running.since + SAME_ARRIVAL_NS;
}

/*
 * When did prev get the core that the last switch gave another thread? 0: unknown. A thread that
 * lost its core just before it fell asleep keeps its former arrival time when it gets one again.
 * The idle thread has none. It got the core when the other one was last accounted for, unless that
 * one has run elsewhere since.
 */
static __always_inline __u64 untraced_time(struct nsr_control *c, struct task_struct *prev,
					   __u64 now)
{
	struct rq *queue = prev->se.cfs_rq->rq;
	struct task_struct *gone = (struct task_struct *)c->running.task;
	__u64 arrival, clock = queue->clock, clock_task = queue->clock_task;

	if (prev->pid) {
		arrival = monotonic_of(clock, prev->sched_info.last_arrival, now);
		return arrival > c->running.since ? arrival : picked_at(prev, clock_task, now);
	}
	arrival = monotonic_of(clock, BPF_CORE_READ(gone, sched_info.last_arrival), now);
	if (!is_last_arrival(c, arrival) && !is_last_arrival(c, picked_at(gone, clock_task, now)))
		return 0;
	return monotonic_of(clock_task, BPF_CORE_READ(gone, se.exec_start), now);
}

/*
 * The last wake-up of a thread, until it gets a core, and when it left its last core. Threads with
 * the same low bits of their numbers share a place, so one may be told twice, or not at all.
 */
#define PLACES 65536
static struct {
	__u32 woken; /* tid; 0: none */
	__u32 left;  /* tid */
	__u64 run_delay;
	__u64 woken_at;
} places[PLACES];
static __u64 switches_since; /* the first switch */

static __always_inline void is_woken(__u32 tid, __u64 now)
{
	places[tid & (PLACES - 1)].woken = tid;
	places[tid & (PLACES - 1)].woken_at = now;
}

/* The run queue's clock at a new thread's first core may be older than the tracepoint of its
 * wake-up, which nevertheless is not a later one. */
static __always_inline void note_wake_up(struct task_struct *task, bool is_new, __u64 now)
{
	is_woken(task->pid, is_new ? 0 : now);
}

static __always_inline void leaves_core(struct task_struct *task, bool runnable, __u64 now)
{
	__u32 at = task->pid & (PLACES - 1);

	if (runnable)
		is_woken(task->pid, now);
	places[at].left = task->pid;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		places[at].run_delay = task->sched_info.run_delay;
}

/* The thread gets a core. Was its wake-up missed? */
static __always_inline bool gets_core(__u32 tid)
{
	__u32 woken = places[tid & (PLACES - 1)].woken;

	if (woken == tid)
		places[tid & (PLACES - 1)].woken = 0;
	return tid && !woken;
}

static __always_inline void put_wake_up(struct nsr_control *c, struct task_struct *task, __u64 time)
{
	if (time > switches_since)
		put1(c, NSR_WAKING, time,
		     (__u64)task->pid | (__u64)bpf_get_smp_processor_id() << 2 * NSR_TID_BITS |
			     NSR_WAKING_UNTRACED);
}

/* At a switch to next: write its wake-up, if none was seen. */
static __always_inline void wake_up_precedes(struct nsr_control *c, struct task_struct *prev,
					     struct task_struct *next, __u64 now)
{
	if (!switches_since)
		switches_since = now;
	if (gets_core(next->pid) && bpf_core_field_exists(next->sched_info.last_queued) &&
	    bpf_core_field_exists(struct rq, clock) &&
	    bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	    bpf_core_field_exists(struct cfs_rq, rq))
		put_wake_up(c, next,
			    monotonic_of(prev->se.cfs_rq->rq->clock, next->sched_info.last_queued,
					 now));
}

/*
 * The same if the switch, at that time, was not seen either, when the thread leaves again: it had
 * waited for as long as the scheduler's sum grew. A wake-up since then is another one.
 */
static __always_inline void wake_up_preceded(struct nsr_control *c, struct task_struct *task,
					     __u64 time)
{
	__u32 tid = task->pid, at = tid & (PLACES - 1);
	bool later = places[at].woken == tid && places[at].woken_at > time;

	if ((later || gets_core(tid)) && places[at].left == tid)
		put_wake_up(c, task, time - (task->sched_info.run_delay - places[at].run_delay));
}

/* Its state now: it may have been woken since. A thread that lost its core just before it fell
 * asleep has the state already, and is still queued. */
static __always_inline __u64 untraced_state(struct nsr_control *c)
{
	struct task_struct *gone = (struct task_struct *)c->running.task;
	__u64 state = BPF_CORE_READ(gone, __state) & TASK_REPORT;

	if (state && BPF_CORE_READ(gone, on_rq) &&
	    !(bpf_core_field_exists(gone->se.sched_delayed) &&
	      BPF_CORE_READ(gone, se.sched_delayed)))
		state = 0;
	return state | NSR_UNTRACED;
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

/*
 * A core that begins to idle while it seems to run a thread has switched to the idle thread just
 * now. Returns the time.
 */
static __always_inline __u64 idle_begins(struct nsr_control *c)
{
	struct task_struct *idle = bpf_get_current_task_btf();
	__u64 now = bpf_ktime_get_ns();

	if (c->running.task && c->running.task != (__u64)idle && !idle->pid &&
	    c->running.since >= watched_from) {
		put_untraced(c, idle, now);
		runs(c, idle, now);
	}
	return now;
}

/* Before the record of a switch: those of the switch before it, and of next's wake-up, if they were
 * not seen. */
static __always_inline void switch_follows(struct nsr_control *c, struct task_struct *prev,
					   struct task_struct *next, bool stays_runnable, __u64 now)
{
	__u64 time;

	/* The thread's address is compared, since execve(2) changes its number. */
	if (c->running.task && c->running.task != (__u64)prev && c->running.since >= watched_from &&
	    bpf_core_field_exists(struct rq, clock) &&
	    bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	    bpf_core_field_exists(struct cfs_rq, rq) &&
	    bpf_core_field_exists(prev->sched_info.last_arrival)) {
		time = untraced_time(c, prev, now);
		if (time > c->running.since) {
			wake_up_preceded(c, prev, time);
			put_untraced(c, prev, time);
		}
	}
	runs(c, next, now);
	leaves_core(prev, stays_runnable, now);
	wake_up_precedes(c, prev, next, now);
}

#endif
