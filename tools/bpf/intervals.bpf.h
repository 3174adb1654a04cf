/* SPDX-License-Identifier: GPL-2.0-only */
/* Intervals of threads: from one mark (or function) of a program to another. */
#ifndef NSIGHT_INTERVALS_BPF_H
#define NSIGHT_INTERVALS_BPF_H

#include "activity.bpf.h"

/* Of kernels without cookies, which this does not run on; our struct pt_regs has no such field. */
#undef PT_REGS_IP
#define PT_REGS_IP(ctx) 0
#include <bpf/usdt.bpf.h>

/* When a thread's intervals began; 0: it is not in that one. */
struct begun {
	__u64 at[NSR_INTERVALS];
	__u64 marked; /* the waits of its process are recorded */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct begun);
} begun SEC(".maps");

/* The cookie of a mark: twice the interval's number, and 1 at its end. */
static __always_inline int mark(__u64 cookie)
{
	__u64 now = bpf_ktime_get_ns(), number = cookie >> 1 & (NSR_INTERVALS - 1), since_then;
	struct nsr_control *c = control();
	struct task_struct *current = bpf_get_current_task_btf();
	struct begun *thread;

	if (!c || stopped)
		return 0;
	thread = bpf_task_storage_get(&begun, current, NULL,
				      cookie & 1 ? 0 : BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!(cookie & 1)) {
		__sync_fetch_and_add(&c->intervals[number].begun, 1);
		if (!thread)
			return 0;
		if (!thread->marked) {
			thread->marked = 1;
			mark_process(current);
		}
		if (thread->at[number])
			__sync_fetch_and_add(&c->intervals[number].again, 1);
		thread->at[number] = now;
		return 0;
	}
	if (!thread || !thread->at[number]) {
		__sync_fetch_and_add(&c->intervals[number].alone, 1);
		return 0;
	}
	since_then = since(thread->at[number], now);
	thread->at[number] = 0;
	put2(c, NSR_INTERVAL, now, since_then | (__u64)current->pid << NSR_DUR_BITS, number, 0);
	return 0;
}

SEC("uprobe")
int on_function_mark(struct pt_regs *ctx)
{
	return mark(bpf_get_attach_cookie(ctx));
}

SEC("usdt")
int on_usdt_mark(struct pt_regs *ctx)
{
	return mark(bpf_usdt_cookie(ctx));
}

#endif
