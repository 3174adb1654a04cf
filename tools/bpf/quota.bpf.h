/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long a ready thread waited because its control group, or one above it, had used up its CPU
 * quota. No tracepoint shows this. The scheduler sums up for each group and core how long threads
 * were kept from running (cpu.stat, throttled_usec); that sum is read where a thread's wait for a
 * core begins and ends.
 */
#ifndef NSIGHT_QUOTA_BPF_H
#define NSIGHT_QUOTA_BPF_H

#include "ring.bpf.h"

/* A ready thread whose group was throttled at some time on its core */
struct quota_wait {
	__u64 queue; /* run queue of its group on its core */
	__u64 then;  /* the queue's throttled time in ns when the wait began */
	__u64 ns;    /* throttled ns in queues that the thread has left */
	__u64 waits; /* it has not got the core yet */
	__u64 at;    /* when these values were read */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, struct quota_wait);
} quota_waits SEC(".maps");

static __always_inline bool quota_is_told(void)
{
	return bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	       bpf_core_field_exists(struct cfs_rq, throttled_clock_self_time);
}

/* Most groups were never throttled. */
static __always_inline bool was_throttled(struct cfs_rq *queue)
{
	return queue->throttled_clock_self_time || queue->throttled_clock_self;
}

/* ns, including the current throttling */
static __always_inline __u64 throttled_ns(struct cfs_rq *queue)
{
	__u64 ns = BPF_CORE_READ(queue, throttled_clock_self_time),
	      since = BPF_CORE_READ(queue, throttled_clock_self), now;

	if (since) {
		now = BPF_CORE_READ(queue, rq, clock);
		ns += now > since ? now - since : 0;
	}
	return ns;
}

/* The thread becomes ready. */
static __always_inline void quota_wait_begins(struct task_struct *task)
{
	struct quota_wait wait = {};
	struct cfs_rq *queue;
	__u32 tid = task->pid;

	if (!quota_is_told())
		return;
	queue = task->se.cfs_rq;
	if (!was_throttled(queue))
		return;
	wait.queue = (__u64)queue;
	wait.then = throttled_ns(queue);
	wait.waits = 1;
	wait.at = bpf_ktime_get_ns();
	bpf_map_update_elem(&quota_waits, &tid, &wait, BPF_ANY);
}

/* The thread changes cores: from now on the queue of the new core counts. */
static __always_inline void quota_wait_moves(struct task_struct *task, int to)
{
	struct quota_wait wait = {}, *before;
	struct cfs_rq *from, *queue, **queues;
	__u32 tid = task->pid;

	if (!quota_is_told())
		return;
	from = task->se.cfs_rq;
	/* Not loaded as a kernel pointer: newer verifiers would take it for one to a queue. */
	queues = BPF_CORE_READ(task, sched_task_group, cfs_rq);
	if (bpf_probe_read_kernel(&queue, sizeof(queue), &queues[to]) || !queue)
		return;
	wait.then = throttled_ns(queue);
	if (!wait.then && !was_throttled(from))
		return;
	before = bpf_map_lookup_elem(&quota_waits, &tid);
	if (before && before->queue == (__u64)from &&
	    from->throttled_clock_self_time > before->then)
		wait.ns = before->ns + from->throttled_clock_self_time - before->then;
	wait.queue = (__u64)queue;
	wait.waits = 1;
	wait.at = bpf_ktime_get_ns();
	bpf_map_update_elem(&quota_waits, &tid, &wait, BPF_ANY);
}

/* The thread gets the core. */
static __always_inline void quota_wait_ends(struct nsr_control *c, struct task_struct *task,
					    __u64 now)
{
	struct quota_wait *wait, watched = {};
	struct cfs_rq *queue;
	__u32 tid = task->pid;
	__u64 ns, took;

	if (!quota_is_told())
		return;
	queue = task->se.cfs_rq;
	ns = queue->throttled_clock_self_time;
	if (!ns)
		return;
	took = ns;
	wait = bpf_map_lookup_elem(&quota_waits, &tid);
	if (watched_from && (!wait || wait->at < watched_from)) {
		/* Most of the wait may have been while recording was paused. */
		watched.queue = (__u64)queue;
		watched.then = ns;
		watched.at = now;
		bpf_map_update_elem(&quota_waits, &tid, &watched, BPF_ANY);
		return;
	}
	if (wait) {
		wait->waits = 0;
		if (wait->queue != (__u64)queue || ns < wait->then)
			return;
		took = ns - wait->then + wait->ns;
		wait->then = ns;
		wait->ns = 0;
	}
	if (took)
		put1(c, NSR_QUOTA, now, since(0, took) | (__u64)tid << NSR_DUR_BITS);
}

/* The thread leaves the core. Some machines do not report every switch: if no switch gave it the
 * core, its wait ended before it ran. A group whose thread runs is not throttled. */
static __always_inline void quota_wait_ended(struct nsr_control *c, struct task_struct *task,
					     __u64 now)
{
	struct quota_wait *wait;
	__u32 tid = task->pid;

	if (!quota_is_told() || !was_throttled(task->se.cfs_rq))
		return;
	wait = bpf_map_lookup_elem(&quota_waits, &tid);
	if (wait && wait->waits)
		quota_wait_ends(c, task, now);
}

#endif
