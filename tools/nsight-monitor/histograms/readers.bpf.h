/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long a reading thread was runnable but not running (run-queue latency). The scheduler keeps
 * that sum for each thread, and how often the thread got a core, so no program has to run at each
 * context switch: the growth of the sum since the thread's last read is the wait of its last
 * wake-up.
 */
#ifndef NSIGHT_MONITOR_READERS_BPF_H
#define NSIGHT_MONITOR_READERS_BPF_H

#include "latency.bpf.h"

#define READERS 4096 /* a power of two */

struct reader {
	__u32 tid;
	__u32 unused;
	__u64 switches;	 /* at the last read */
	__u64 run_delay; /* at the last read */
	__u64 wait;	 /* ns, of the last wake-up */
	__u64 ran;	 /* when it was first seen running after that */
};

static struct reader readers[READERS];

/* The thread's last run-queue wait, limited to the part between hand-off and now */
static __always_inline void observe_run_queue(struct core *core, struct histograms *all,
					      struct task_struct *task, __u32 group, __u64 handoff,
					      __u64 now)
{
	__u32 tid = task->pid;
	struct reader *r = &readers[tid & (READERS - 1)];
	__u64 switches = task->sched_info.pcount, run_delay = task->sched_info.run_delay, part = 0;

	if (r->tid != tid) {
		r->tid = tid;
		r->switches = switches;
		r->run_delay = run_delay;
		r->wait = 0;
		r->ran = now;
		count(core, COUNT_READ_NEW_THREAD);
		return;
	}
	if (switches != r->switches) {
		if (switches - r->switches > 1)
			count(core, COUNT_SEVERAL_SWITCHES);
		r->wait = run_delay - r->run_delay;
		r->ran = now;
		r->switches = switches;
		r->run_delay = run_delay;
	}
	if (r->ran > handoff)
		part = r->wait < r->ran - handoff ? r->wait : r->ran - handoff;
	observe_in(core, all, STAGE_RUN_QUEUE, group, part);
}

#endif
