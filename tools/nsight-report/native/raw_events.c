// SPDX-License-Identifier: GPL-2.0-only
#include "raw_events.h"

#include <stdlib.h>
#include <string.h>

void raw_flush(struct merge *m)
{
	fwrite(m->held, sizeof(*m->held), m->n_held, m->out);
	m->n_held = 0;
}

/* n bits; the sign is the top one */
static int64_t sign_extend(uint64_t value, int bits)
{
	return (int64_t)(value << (64 - bits)) >> (64 - bits);
}

/* The idle threads have no TASK records. */
static uint64_t thread_name(const struct merge *m, const struct raw_file *file, int32_t tid)
{
	return tid ? raw_thread(&m->rec->threads, tid)->name : file->idle;
}

static void set_tid(struct merge *m, struct nsight_event *ev, int32_t tid)
{
	ev->tid = tid;
	ev->pid = raw_pid(&m->rec->threads, tid);
}

void raw_runs(struct merge *m, struct raw_file *file, int32_t tid)
{
	struct raw_threads *threads = &m->rec->threads;

	if (file->tid > 0 && raw_thread(threads, file->tid)->cpu == file->cpu + 1)
		raw_thread(threads, file->tid)->cpu = 0;
	if (tid > 0)
		raw_thread(threads, tid)->cpu = file->cpu + 1;
	file->tid = tid;
}

/*
 * If system calls were not recorded, a switch in a system call shows which one it is. The call is
 * then reported as if it began when its thread was switched out, and ended when the thread got the
 * core again.
 */
static void put_wait(struct merge *m, struct nsight_event *ev, const unsigned char *p, int32_t tid)
{
	struct raw_thread *thread = raw_thread(&m->rec->threads, tid);

	set_tid(m, ev, tid);
	ev->kind = K_SYS_ENTER;
	ev->a = thread->waits_in = (int16_t)(raw_word(p, 2) >> NSR_TIME_BITS);
	ev->b = (int64_t)raw_word(p, 3);
	thread->waits = true;
	raw_put(m, ev);
}

static void end_wait(struct merge *m, struct nsight_event *ev, int32_t tid)
{
	struct raw_thread *thread = tid > 0 ? raw_thread(&m->rec->threads, tid) : NULL;

	if (!thread || !thread->waits)
		return;
	thread->waits = false;
	set_tid(m, ev, tid);
	ev->kind = K_SYS_EXIT;
	ev->a = thread->waits_in;
	ev->b = ev->c = 0;
	raw_put(m, ev);
}

static void put_switch(struct merge *m, struct raw_file *file, struct nsight_event *ev,
		       const unsigned char *p, unsigned int type)
{
	int32_t prev = raw_prev_tid(p), next = raw_next_tid(p);

	if (type == NSR_SWITCH_SYSCALL && !(raw_word(p, 2) & ((1ull << NSR_TIME_BITS) - 1)) && prev)
		put_wait(m, ev, p, prev);
	set_tid(m, ev, prev);
	ev->kind = K_SCHED_SWITCH;
	ev->a = next;
	ev->b = raw_word(p, 1) >> (2 * NSR_TID_BITS) & 0x3ff;
	if (ev->b & NSR_UNTRACED)
		m->rec->losses.switches_untraced++;
	ev->b &= ~NSR_UNTRACED;
	ev->c = (int64_t)(thread_name(m, file, prev) | thread_name(m, file, next) << 32);
	raw_put(m, ev);
	raw_runs(m, file, next);
	end_wait(m, ev, next);
}

/*
 * Each switch out of a system call carries that call, and so does the call's end, on whatever core.
 * The begin event is made from the first of these records, at the time of the begin; its core is
 * the one on which the thread ran then.
 */
static void put_enter(struct merge *m, struct raw_file *file, struct nsight_event *ev,
		      const unsigned char *p, unsigned int type)
{
	bool by_switch = type == NSR_SWITCH_SYSCALL;
	int32_t tid = by_switch ? raw_prev_tid(p) : raw_syscall_tid(p);
	struct raw_thread *thread = raw_thread(&m->rec->threads, tid);

	if (thread->in_syscall && thread->entered == ev->ts)
		return;
	/* if a call is too long for a record, only switches have its begin time */
	if (!by_switch && raw_dur(p) == RAW_DUR_MASK && thread->in_syscall)
		return;
	if (file->tid != tid) {
		if (!thread->cpu)
			return;
		ev->cpu = thread->cpu - 1;
	}
	set_tid(m, ev, tid);
	ev->kind = K_SYS_ENTER;
	ev->a = (int16_t)(raw_word(p, 2) >> NSR_TIME_BITS);
	ev->b = by_switch ? (int64_t)raw_word(p, 3) : sign_extend(raw_word(p, 2), NSR_TIME_BITS);
	thread->in_syscall = true;
	thread->entered = ev->ts;
	raw_put(m, ev);
}

static void put_exit(struct merge *m, struct nsight_event *ev, const unsigned char *p)
{
	int32_t tid = raw_syscall_tid(p);
	struct raw_thread *thread = raw_thread(&m->rec->threads, tid);

	m->rec->losses.enters_missing += !thread->in_syscall;
	thread->in_syscall = false;
	set_tid(m, ev, tid);
	ev->kind = K_SYS_EXIT;
	ev->a = (int16_t)(raw_word(p, 2) >> NSR_TIME_BITS);
	ev->b = (int64_t)raw_word(p, 3);
	raw_put(m, ev);
}

static void put_pair(struct merge *m, struct raw_file *file, struct nsight_event *ev,
		     const struct raw_item *item, const unsigned char *p)
{
	bool begin = item->role == ROLE_BEGIN;
	uint32_t what = raw_word(p, 1) >> NSR_DUR_BITS;

	if (item->type == NSR_SWITCH_SYSCALL || (item->type == NSR_SYSCALL && begin)) {
		put_enter(m, file, ev, p, item->type);
		return;
	}
	if (item->type == NSR_SYSCALL) {
		put_exit(m, ev, p);
		return;
	}
	ev->a = what;
	switch (item->type) {
	case NSR_SOFTIRQ:
		ev->kind = begin ? K_SOFTIRQ_ENTRY : K_SOFTIRQ_EXIT;
		if (!begin && file->others) {
			ev->b = (int64_t)(file->others >> 32);
			ev->c = raw_reader_name(m->rec, file->others & (N_READERS - 1));
		}
		file->others = 0;
		break;
	case NSR_IRQ:
		ev->kind = begin ? K_IRQ_HANDLER_ENTRY : K_IRQ_HANDLER_EXIT;
		ev->c = begin ? raw_irq_name(m->rec, what) : 0;
		break;
	case NSR_VECTOR:
		ev->kind = begin ? K_VECTOR_ENTRY : K_VECTOR_EXIT;
		ev->a = raw_vector_number(what);
		ev->c = m->vector_names[what];
		break;
	case NSR_IDLE:
		ev->kind = K_CPU_IDLE;
		ev->a = begin ? (int64_t)what : -1;
		ev->b = file->cpu;
		break;
	}
	raw_put(m, ev);
}

/* Name and process are valid from now on; ev->ts 0: existing thread. */
static void put_task(struct merge *m, struct nsight_event *ev, const unsigned char *p)
{
	uint32_t tid = load32(p + 8), pid = load32(p + 12), parent = load32(p + 36);
	struct raw_recording *rec = m->rec;
	struct raw_thread *thread = raw_thread(&rec->threads, tid);

	thread->pid = pid + 1;
	thread->name = strings_intern(&rec->strings, (const char *)p + 16, 16);
	ev->c = thread->name;
	switch (p[32]) {
	case NSR_TASK_WAS_THERE: /* its event is among the first ones */
		return;
	case NSR_TASK_NEW:
		thread->in_syscall = thread->waits = false;
		set_tid(m, ev, parent);
		ev->kind = K_SCHED_PROCESS_FORK;
		ev->a = tid;
		ev->b = parent;
		raw_put(m, ev);
		ev->kind = K_FORK;
		ev->c = ev->pid;
		ev->pid = pid;
		break;
	default:
		ev->kind = K_COMM;
		ev->tid = tid;
		ev->pid = pid;
		ev->a = tid;
		ev->b = p[32] == NSR_TASK_EXEC;
		if (!ev->b)
			break;
		raw_put(m, ev);
		/* a thread that is not its process's first takes over the number of the first */
		ev->kind = K_SCHED_PROCESS_EXEC;
		ev->b = parent ? parent : tid;
	}
	raw_put(m, ev);
}

/* The first counter always gets an event: it shows when they were read. */
static void put_counters(struct merge *m, struct nsight_event *ev, const unsigned char *p)
{
	ev->kind = K_COUNTER;
	for (int i = 0; i < NSR_COUNTERS_AT_ONCE; i++) {
		ev->a = i;
		ev->b = (int64_t)raw_word(p, 1 + i);
		if (!i || ev->b)
			raw_put(m, ev);
	}
}

static void put_one(struct merge *m, struct raw_file *file, struct nsight_event *ev,
		    const struct raw_item *item, const unsigned char *p)
{
	uint64_t w = raw_word(p, 1);

	switch (item->type) {
	case NSR_WAKING:
		set_tid(m, ev, raw_told_thread(item, p));
		m->rec->losses.wake_ups_untraced += !!(w & NSR_WAKING_UNTRACED);
		ev->kind = w >> 60 & 1 ? K_SCHED_WAKEUP_NEW : K_SCHED_WAKING;
		ev->a = raw_next_tid(p);
		ev->b = w >> 44 & 0xffff;
		ev->c = (int64_t)thread_name(m, file, ev->a);
		break;
	case NSR_MIGRATE:
		ev->kind = K_SCHED_MIGRATE_TASK;
		ev->a = w & RAW_TID_MASK;
		ev->b = w >> 22 & 0xffff;
		ev->c = w >> 38 & 0xffff;
		break;
	case NSR_FAULT:
		ev->kind = w >> 63 ? K_PAGE_FAULT_USER : K_PAGE_FAULT_KERNEL;
		ev->a = sign_extend(w, NSR_TIME_BITS);
		ev->c = w >> NSR_TIME_BITS & 0x7fff;
		break;
	case NSR_EXIT:
		ev->kind = K_SCHED_PROCESS_EXIT;
		ev->tid = ev->a = load32(p + 8);
		ev->pid = load32(p + 12);
		ev->c = raw_thread(&m->rec->threads, ev->tid)->name;
		break;
	case NSR_BLOCK:
		ev->kind = K_BLOCK_IO;
		ev->a = load32(p + 20);
		ev->b = raw_dur(p);
		ev->c = (int64_t)(load32(p + 16) | (w >> NSR_DUR_BITS & 0xffff) << 32);
		break;
	case NSR_FREQUENCY:
	case NSR_STEAL:
		ev->kind = item->type == NSR_STEAL ? K_STEAL : K_CPU_FREQUENCY;
		ev->a = item->type == NSR_STEAL ? (int64_t)(w & ((1ull << 48) - 1))
						: (int64_t)(uint32_t)w;
		ev->cpu = item->type == NSR_STEAL ? w >> 48 : w >> 32;
		ev->b = item->placed;
		if (item->type == NSR_STEAL && file->cpu == NSR_NO_CPU)
			ev->b = 2;
		if (item->type == NSR_STEAL && !item->placed && file->cpu != NSR_NO_CPU)
			m->rec->losses.steal_without_place += ev->a;
		ev->pid = ev->tid = -1;
		break;
	case NSR_DROP:
	case NSR_DROP_V4:
	case NSR_DROP_V6:
		raw_put_drop(m, ev, p, item->type);
		return;
	case NSR_OTHERS: /* reported with the end of the softirq */
		file->others = w;
		return;
	case NSR_QUOTA:
		ev->kind = K_CPU_QUOTA;
		ev->a = raw_syscall_tid(p);
		ev->b = raw_dur(p);
		break;
	case NSR_COUNTERS:
		put_counters(m, ev, p);
		return;
	case NSR_MEMORY:
		ev->kind = K_MEMORY_WORK;
		ev->a = raw_memory(p);
		ev->b = raw_dur(p);
		break;
	case NSR_RETRANSMIT:
		ev->kind = K_TCP_RETRANSMIT;
		ev->a = w >> 32;
		ev->b = w & 0xffffffff;
		ev->c = (int64_t)raw_socket(raw_word(p, 2));
		break;
	default:
		return;
	}
	raw_put(m, ev);
}

int32_t raw_told_thread(const struct raw_item *item, const unsigned char *p)
{
	switch (item->type) {
	case NSR_IDLE:
		return 0;
	case NSR_WAKING:
		return raw_word(p, 1) & NSR_WAKING_UNTRACED ? -1 : raw_prev_tid(p);
	case NSR_MEMORY:
		return raw_syscall_tid(p);
	case NSR_SYSCALL: /* it is not certain that it begins there */
		return item->role == ROLE_END ? raw_syscall_tid(p) : -1;
	case NSR_EXIT:
		return load32(p + 8);
	case NSR_TASK:
		return p[32] == NSR_TASK_EXEC  ? (int32_t)load32(p + 8)
		       : p[32] == NSR_TASK_NEW ? (int32_t)load32(p + 36)
					       : -1;
	}
	return -1;
}

void raw_put_item(struct merge *m, struct raw_file *file, const struct raw_item *item)
{
	struct nsight_event ev = {.ts = item->ts,
				  .cpu = file->cpu == NSR_NO_CPU ? NSIGHT_NO_CPU : file->cpu};
	const struct raw_gap *gap;
	int32_t told = -1;

	/* Some machines do not trace every switch, to and from idle or their own agent: then the
	 * next records belong to another thread. */
	if (item->role < ROLE_GAP && file->cpu != NSR_NO_CPU)
		told = raw_told_thread(item, raw_at(file, item));
	if (told >= 0 && told != file->tid)
		raw_runs(m, file, told);
	set_tid(m, &ev, file->tid);
	switch (item->role) {
	case ROLE_GAP:
		raw_runs(m, file, -1);
		break;
	case ROLE_LOST:
		gap = &file->gaps[item->unit];
		raw_runs(m, file, gap->tid);
		ev.kind = K_LOST;
		ev.tid = ev.pid = -1;
		ev.a = (int64_t)gap->units;
		raw_put(m, &ev);
		break;
	case ROLE_AT:
		if (item->type == NSR_SWITCH || item->type == NSR_SWITCH_SYSCALL)
			put_switch(m, file, &ev, raw_at(file, item), item->type);
		else if (item->type == NSR_TASK)
			put_task(m, &ev, raw_at(file, item));
		else
			put_one(m, file, &ev, item, raw_at(file, item));
		break;
	default:
		put_pair(m, file, &ev, item, raw_at(file, item));
	}
}
