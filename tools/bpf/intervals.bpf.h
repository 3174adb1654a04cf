/* SPDX-License-Identifier: GPL-2.0-only */
/* Intervals of threads: from one mark (or function) of a program to another. */
#ifndef NSIGHT_INTERVALS_BPF_H
#define NSIGHT_INTERVALS_BPF_H

#include "activity.bpf.h"

/* From kernels without cookies, which are not supported; our struct pt_regs has no such field. */
#undef PT_REGS_IP
#define PT_REGS_IP(ctx) 0
#include <bpf/usdt.bpf.h>

/* An open interval: when it began, 0: not open; when it was handed over, 0: not yet; where. */
struct opened {
	__u64 at, handover;
	__u32 tid, cpu;
};

/* Open intervals that are paired by their thread. */
struct begun {
	struct opened of[NSR_INTERVALS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct begun);
} begun SEC(".maps");

/* Pairs marks that name a key: an argument, within a process. */
struct interval_key {
	__u64 argument;
	__u32 number, tgid;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NSR_KEYS);
	__type(key, struct interval_key);
	__type(value, struct opened);
} begun_keys SEC(".maps");

/* The thread's process was not of interest before: from now on its waits are recorded. */
static __always_inline void mark_once(struct task_struct *current)
{
	if (!thread_of(current))
		mark_process(current);
}

static __always_inline void put_interval(struct nsr_control *c, __u64 now, __u32 number,
					 struct task_struct *current, const struct opened *from)
{
	__u64 took = since(from->at, now), who = (__u64)current->pid << NSR_DUR_BITS, other = 0;

	if (from->tid != (__u32)current->pid)
		other = (__u64)from->tid << 16 | (__u64)(from->cpu & 0xffff) << (16 + NSR_TID_BITS);
	put2(c, NSR_INTERVAL, now, took | who, number | other,
	     from->handover ? since(from->at, from->handover) | 1ull << 63 : 0);
}

static __always_inline struct opened here(struct task_struct *current, __u64 now)
{
	return (struct opened){.at = now, .tid = current->pid, .cpu = bpf_get_smp_processor_id()};
}

/* An interval that is paired by its thread. */
static __always_inline int mark_thread(struct nsr_control *c, __u64 now, __u32 number, __u32 which)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct begun *thread =
		bpf_task_storage_get(&begun, current, NULL,
				     which == NSR_MARK_BEGIN ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	struct opened *from = thread ? &thread->of[number] : NULL;

	if (which == NSR_MARK_BEGIN) {
		__sync_fetch_and_add(&c->intervals[number].begun, 1);
		if (!from) {
			__sync_fetch_and_add(&c->intervals[number].unpaired, 1);
			return 0;
		}
		mark_once(current);
		if (from->at)
			__sync_fetch_and_add(&c->intervals[number].again, 1);
		*from = here(current, now);
	} else if (!from || !from->at) {
		if (which == NSR_MARK_END)
			__sync_fetch_and_add(&c->intervals[number].alone, 1);
	} else if (which == NSR_MARK_HANDOVER) {
		from->handover = now;
	} else {
		put_interval(c, now, number, current, from);
		from->at = 0;
	}
	return 0;
}

/* An interval that is paired by an argument, whichever threads of the process reach the marks. */
static __always_inline int mark_key(struct nsr_control *c, __u64 now, __u32 number, __u32 which,
				    __u64 argument)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct interval_key key = {argument, number, current->tgid};
	struct opened *from, new;

	if (which == NSR_MARK_BEGIN) {
		__sync_fetch_and_add(&c->intervals[number].begun, 1);
		mark_once(current);
		new = here(current, now);
		if (!bpf_map_update_elem(&begun_keys, &key, &new, BPF_NOEXIST))
			return 0;
		from = bpf_map_lookup_elem(&begun_keys, &key);
		if (!from) {
			__sync_fetch_and_add(&c->intervals[number].unpaired, 1);
			return 0;
		}
		__sync_fetch_and_add(&c->intervals[number].again, 1);
		*from = new;
		return 0;
	}
	from = bpf_map_lookup_elem(&begun_keys, &key);
	if (!from) {
		if (which == NSR_MARK_END)
			__sync_fetch_and_add(&c->intervals[number].alone, 1);
		return 0;
	}
	if (which == NSR_MARK_HANDOVER) {
		from->handover = now;
		return 0;
	}
	mark_once(current);
	new = *from;
	/* If two ends of one key come at the same time, only one of them gets the interval. */
	if (bpf_map_delete_elem(&begun_keys, &key))
		__sync_fetch_and_add(&c->intervals[number].alone, 1);
	else
		put_interval(c, now, number, current, &new);
	return 0;
}

#define NUMBER(cookie) ((cookie) >> 2 & (NSR_INTERVALS - 1))
#define KEY(cookie)    ((cookie) >> 8 & 0xff)

/* Registers are read as memory: their offsets are known only at run time, and ctx takes only fixed
 * ones. */
static __always_inline __u64 argument_of(struct pt_regs *ctx, __u64 number)
{
	__u64 value = 0;

#if defined(__TARGET_ARCH_x86)
	switch (number) {
	case 0:
		bpf_core_read(&value, sizeof(value), &ctx->di);
		break;
	case 1:
		bpf_core_read(&value, sizeof(value), &ctx->si);
		break;
	case 2:
		bpf_core_read(&value, sizeof(value), &ctx->dx);
		break;
	case 3:
		bpf_core_read(&value, sizeof(value), &ctx->cx);
		break;
	case 4:
		bpf_core_read(&value, sizeof(value), &ctx->r8);
		break;
	default:
		bpf_core_read(&value, sizeof(value), &ctx->r9);
	}
#else
	bpf_core_read(&value, sizeof(value), &ctx->user_regs.regs[number & 7]);
#endif
	return value;
}

SEC("uprobe")
int on_function_mark(struct pt_regs *ctx)
{
	__u64 now = bpf_ktime_get_ns(), cookie = bpf_get_attach_cookie(ctx);
	struct nsr_control *c = control();

	if (!c)
		return 0;
	put_counters(c, now);
	if (!KEY(cookie))
		return mark_thread(c, now, NUMBER(cookie), cookie & 3);
	return mark_key(c, now, NUMBER(cookie), cookie & 3, argument_of(ctx, KEY(cookie) - 1));
}

SEC("usdt")
int on_usdt_mark(struct pt_regs *ctx)
{
	__u64 now = bpf_ktime_get_ns(), cookie = bpf_usdt_cookie(ctx);
	struct nsr_control *c = control();
	long argument = 0;

	if (!c)
		return 0;
	put_counters(c, now);
	if (!KEY(cookie))
		return mark_thread(c, now, NUMBER(cookie), cookie & 3);
	if (bpf_usdt_arg(ctx, KEY(cookie) - 1, &argument)) {
		__sync_fetch_and_add(&c->intervals[NUMBER(cookie)].unpaired, 1);
		return 0;
	}
	return mark_key(c, now, NUMBER(cookie), cookie & 3, argument);
}

/* -- timers: from when a timer was due to when the thread that it woke ran -- */

struct nsr_timers timers[NSR_INTERVALS];

/* The timer that is firing on a core: when it was due, CLOCK_MONOTONIC; 0: none is firing. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} firing SEC(".maps");

/* A thread that a timer woke and that has not run since. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct opened);
} timer_woke SEC(".maps");

static __always_inline void set_firing(__u64 due)
{
	__u32 zero = 0;
	__u64 *now = bpf_map_lookup_elem(&firing, &zero);

	if (now)
		*now = due;
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(on_timer_expires, struct hrtimer *timer)
{
	set_firing(timer->_softexpires - timer->base->offset);
	return 0;
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(on_timer_expired, struct hrtimer *timer)
{
	set_firing(0);
	return 0;
}

static __always_inline bool is_of(const struct nsr_timers *of, struct task_struct *task)
{
	if (of->pid)
		return of->pid == (__u32)task->tgid;
	if (!of->comm[0])
		return false;
	for (int i = 0; i < 16; i++) {
		if (of->comm[i] != task->comm[i])
			return false;
		if (!of->comm[i])
			break;
	}
	return true;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_timer_wakes, struct task_struct *task)
{
	__u32 zero = 0;
	__u64 *due = bpf_map_lookup_elem(&firing, &zero);
	struct nsr_control *c;
	struct opened *woke;

	if (!due || !*due || stopped)
		return 0;
	for (__u32 i = 0; i < NSR_INTERVALS; i++) {
		if (!is_of(&timers[i], task))
			continue;
		c = control();
		mark_once(task);
		woke = bpf_task_storage_get(&timer_woke, task, NULL,
					    BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!c)
			return 0;
		__sync_fetch_and_add(&c->intervals[i].begun, 1);
		if (!woke) {
			__sync_fetch_and_add(&c->intervals[i].unpaired, 1);
			return 0;
		}
		if (woke->at)
			__sync_fetch_and_add(&c->intervals[i].again, 1);
		*woke = (struct opened){.at = *due, .tid = task->pid, .cpu = i};
		/* The thread was about to sleep after the due time: nothing switches to it. */
		if (task == bpf_get_current_task_btf()) {
			put_interval(c, bpf_ktime_get_ns(), i, task, woke);
			woke->at = 0;
		}
		return 0;
	}
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_timers_thread_runs, bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	__u64 now = bpf_ktime_get_ns();
	struct opened *woke;
	struct nsr_control *c;

	c = control();
	if (!c)
		return 0;
	/* A thread that was awake when its timer fired, and now leaves its core, was not woken. */
	woke = prev->bpf_storage ? bpf_task_storage_get(&timer_woke, prev, NULL, 0) : NULL;
	if (woke && woke->at) {
		__sync_fetch_and_add(&c->intervals[woke->cpu & (NSR_INTERVALS - 1)].begun, -1);
		woke->at = 0;
	}
	if (!next->bpf_storage)
		return 0;
	woke = bpf_task_storage_get(&timer_woke, next, NULL, 0);
	if (!woke || !woke->at)
		return 0;
	put_interval(c, now, woke->cpu, next, woke);
	woke->at = 0;
	return 0;
}

#endif
