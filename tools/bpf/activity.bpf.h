/* SPDX-License-Identifier: GPL-2.0-only */
/* What the cores do: one record for each switch, wake-up, interrupt, softirq, system call. */
#ifndef NSIGHT_ACTIVITY_BPF_H
#define NSIGHT_ACTIVITY_BPF_H

#include "counters.bpf.h"
#include "others.bpf.h"
#include "quota.bpf.h"
#include "threads.bpf.h"
#include "untraced.bpf.h"

#define TASK_REPORT_MAX 0x100 /* how sched:sched_switch reports that a thread was preempted */
#define TASK_IDLE	0x402
#define REPORT_IDLE	0x80
#define RTLOCK_WAIT	0x1000
#define UNINTERRUPTIBLE 0x2
#define NET_RX		3

/*
 * Steal time of this core as the scheduler last saw it; the scheduler looks before each switch and
 * at each tick. The report finds where the time was stolen: the core ran nothing then.
 */
static __always_inline void look_for_steal(struct nsr_control *c, struct task_struct *current,
					   __u64 now)
{
	__u64 steal, before = c->steal;

	if (!bpf_core_field_exists(struct rq, prev_steal_time_rq) ||
	    !bpf_core_field_exists(struct cfs_rq, rq))
		return;
	steal = current->se.cfs_rq->rq->prev_steal_time_rq;
	if (steal == before)
		return;
	c->steal = steal;
	if (before && steal > before)
		put1(c, NSR_STEAL, now,
		     ((steal - before) & ((1ull << 48) - 1)) | (__u64)bpf_get_smp_processor_id()
								       << 48);
}

/* prev_state as the tracepoint prints it */
static __always_inline __u64 state_of(bool preempt, struct task_struct *task, unsigned int state)
{
	if (preempt)
		return TASK_REPORT_MAX;
	if (state == TASK_IDLE)
		return REPORT_IDLE;
	if (state & RTLOCK_WAIT)
		return UNINTERRUPTIBLE;
	return (state | task->exit_state) & TASK_REPORT;
}

/* A switch away from a thread that may be in a system call; in interrupts the number is -1. */
static __always_inline void put_wait(struct nsr_control *c, __u64 now, __u64 who,
				     struct task_struct *prev)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(prev);
	long number;
	__u64 argument;

#if defined(__TARGET_ARCH_x86)
	number = regs->orig_ax;
	argument = regs->di;
#else
	number = regs->syscallno;
	argument = regs->orig_x0;
#endif
	if (number < 0)
		put1(c, NSR_SWITCH, now, who);
	else
		put2(c, NSR_SWITCH_SYSCALL, now, who, (__u64)number << NSR_TIME_BITS, argument);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	__u64 now = bpf_ktime_get_ns(), who;
	struct nsr_control *c = control();
	struct thread *thread;

	if (!c)
		return 0;
	switch_follows(c, prev, next, preempt || !prev_state, now);
	put_counters(c, now);
	look_for_steal(c, prev, now);
	quota_wait_ended(c, prev, now);
	if (preempt || !prev_state)
		quota_wait_begins(prev);
	quota_wait_ends(c, next, now);
	who = (__u64)next->pid | (__u64)prev->pid << NSR_TID_BITS |
	      state_of(preempt, prev, prev_state) << 2 * NSR_TID_BITS;
	/* Every process counts: the one that held the lock may get no messages. */
	if (only_waits && !(prev->flags & PF_KTHREAD)) {
		put_wait(c, now, who, prev);
		return 0;
	}
	thread = thread_of(prev);
	if (thread && thread->entered && !syscalls_left)
		put2(c, NSR_SWITCH_SYSCALL, now, who,
		     thread->entered | thread->number << NSR_TIME_BITS, thread->argument);
	else
		put1(c, NSR_SWITCH, now, who);
	return 0;
}

static __always_inline int waking(struct task_struct *task, __u64 is_new)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();

	if (!c)
		return 0;
	quota_wait_begins(task);
	note_wake_up(task, is_new, now);
	put1(c, NSR_WAKING, now,
	     (__u64)task->pid | (bpf_get_current_pid_tgid() & 0x3fffff) << NSR_TID_BITS |
		     (__u64)(task->thread_info.cpu & 0xffff) << 2 * NSR_TID_BITS |
		     is_new << (2 * NSR_TID_BITS + 16));
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_sched_waking, struct task_struct *task)
{
	return waking(task, 0);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_sched_wakeup_new, struct task_struct *task)
{
	return waking(task, 1);
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_sched_migrate_task, struct task_struct *task, int to)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();

	if (!c)
		return 0;
	quota_wait_moves(task, to);
	put1(c, NSR_MIGRATE, now,
	     (__u64)task->pid | (__u64)(to & 0xffff) << NSR_TID_BITS |
		     (__u64)(task->thread_info.cpu & 0xffff) << (NSR_TID_BITS + 16));
	return 0;
}

/* A pair: the begin is kept, and the end writes the record. */
static __always_inline void began(__u64 *when)
{
	*when = bpf_ktime_get_ns();
}

static __always_inline void ended(struct nsr_control *c, __u64 *when, __u32 type, __u64 what)
{
	__u64 now = bpf_ktime_get_ns(), begin = *when;

	if (!begin)
		return; /* it began before the recording did */
	*when = 0;
	put1(c, type, now, since(begin, now) | what << NSR_DUR_BITS);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	struct nsr_control *c = control();

	if (!c)
		return 0;
	if (vector == NET_RX)
		forget_left_out(c);
	began(&c->softirq);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	struct nsr_control *c = control();

	if (!c)
		return 0;
	if (vector == NET_RX)
		tell_left_out(c);
	ended(c, &c->softirq, NSR_SOFTIRQ, vector);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_handler_entry, int irq, struct irqaction *action)
{
	struct nsr_control *c = control();

	if (c)
		began(&c->irq);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_handler_exit, int irq, struct irqaction *action, int result)
{
	struct nsr_control *c = control();

	if (c)
		ended(c, &c->irq, NSR_IRQ, (__u32)irq & 0xffffff);
	return 0;
}

#define VECTOR(name, number)                                                                       \
	SEC("tp_btf/" #name "_entry")                                                              \
	int BPF_PROG(on_##name##_entry, int vector)                                                \
	{                                                                                          \
		struct nsr_control *c = control();                                                 \
                                                                                                   \
		if (c)                                                                             \
			began(&c->vector[number]);                                                 \
		return 0;                                                                          \
	}                                                                                          \
	SEC("tp_btf/" #name "_exit")                                                               \
	int BPF_PROG(on_##name##_exit, int vector)                                                 \
	{                                                                                          \
		struct nsr_control *c = control();                                                 \
                                                                                                   \
		if (c)                                                                             \
			ended(c, &c->vector[number], NSR_VECTOR, number);                          \
		return 0;                                                                          \
	}

VECTOR(local_timer, NSR_LOCAL_TIMER)
VECTOR(reschedule, NSR_RESCHEDULE)
VECTOR(call_function, NSR_CALL_FUNCTION)
VECTOR(call_function_single, NSR_CALL_FUNCTION_SINGLE)

#define PWR_EVENT_EXIT 0xffffffffu

SEC("tp_btf/cpu_idle")
int BPF_PROG(on_cpu_idle, unsigned int state, unsigned int cpu)
{
	struct nsr_control *c = control();

	if (!c)
		return 0;
	if (state != PWR_EVENT_EXIT) {
		c->idle_state = state & 0xff;
		c->idle = idle_begins(c);
	} else {
		ended(c, &c->idle, NSR_IDLE, c->idle_state);
	}
	return 0;
}

SEC("tp_btf/cpu_frequency")
int BPF_PROG(on_cpu_frequency, unsigned int frequency, unsigned int cpu)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();

	if (c)
		put1(c, NSR_FREQUENCY, now, frequency | (__u64)(cpu & 0xffff) << 32);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(on_sys_enter, struct pt_regs *regs, long number)
{
	struct thread *thread = current_thread(bpf_get_current_task_btf());

	if (!thread)
		return 0;
	thread->number = number & 0xffff;
#if defined(__TARGET_ARCH_x86)
	thread->argument = regs->di;
#else
	thread->argument = regs->orig_x0;
#endif
	thread->entered = bpf_ktime_get_ns() & ((1ull << NSR_TIME_BITS) - 1);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	struct nsr_control *c;
	__u64 now, took, entered;

	if (!thread || !thread->entered)
		return 0;
	entered = thread->entered;
	thread->entered = 0;
	c = control();
	if (!c)
		return 0;
	now = bpf_ktime_get_ns();
	took = ((now & ((1ull << NSR_TIME_BITS) - 1)) - entered) & ((1ull << NSR_TIME_BITS) - 1);
	put2(c, NSR_SYSCALL, now, since(now - took, now) | (__u64)task->pid << NSR_DUR_BITS,
	     (thread->argument & ((1ull << NSR_TIME_BITS) - 1)) | thread->number << NSR_TIME_BITS,
	     result);
	return 0;
}

static __always_inline int fault(unsigned long address, unsigned long error, __u64 user)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();

	if (c)
		put1(c, NSR_FAULT, now,
		     (address & ((1ull << NSR_TIME_BITS) - 1)) | (error & 0x7fff) << NSR_TIME_BITS |
			     user << 63);
	return 0;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(on_page_fault_user, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	return fault(address, error, 1);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_page_fault_kernel, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	return fault(address, error, 0);
}

static __always_inline int thread_record(struct task_struct *task, const char *name, __u64 why,
					 __u64 parent)
{
	__u64 now = bpf_ktime_get_ns(), index, *record;
	struct nsr_control *c = control();

	record = c ? reserve(c, NSR_TASK, now, &index) : NULL;
	if (!record)
		return 0;
	record[1] = (__u32)task->pid | (__u64)task->tgid << 32;
	if (bpf_probe_read_kernel(&record[2], 16, name))
		record[2] = record[3] = 0;
	record[4] = why | parent << 32;
	record[5] = 0;
	commit(record, index, NSR_TASK, now);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	return thread_record(child, child->comm, NSR_TASK_NEW, (__u32)parent->pid);
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_task_rename, struct task_struct *task, const char *name)
{
	return thread_record(task, name, NSR_TASK_RENAMED, 0);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_sched_process_exec, struct task_struct *task, int old_pid)
{
	return thread_record(task, task->comm, NSR_TASK_EXEC, (__u32)old_pid);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_sched_process_exit, struct task_struct *task)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();

	/* The flight recorder looks up names when it writes a window; by then this one is lost. */
	if (overwrite)
		thread_record(task, task->comm, NSR_TASK_WAS_THERE, 0);
	if (c)
		put1(c, NSR_EXIT, now, (__u32)task->pid | (__u64)task->tgid << 32);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_block_rq_complete, struct request *rq, int error, unsigned int bytes)
{
	__u64 now = bpf_ktime_get_ns(), began_at = rq->io_start_time_ns;
	struct nsr_control *c = control();
	struct gendisk *disk = rq->q->disk;
	__u64 device = 0;

	if (!c)
		return 0;
	if (disk)
		device = (__u64)disk->major << 20 | disk->first_minor;
	/* Without I/O accounting the kernel does not record when the device got it. */
	put2(c, NSR_BLOCK, now,
	     (began_at ? since(began_at, now) : 0) | (__u64)(rq->cmd_flags & 0xff) << NSR_DUR_BITS |
		     (__u64)(error & 0xff) << (NSR_DUR_BITS + 8),
	     bytes | device << 32, rq->__sector);
	return 0;
}

#endif
