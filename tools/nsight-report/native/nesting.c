// SPDX-License-Identifier: GPL-2.0-only
#include "nesting.h"

#include "util.h"

#include <string.h>

#define BASE_KEY       0
#define SYSCALL_KEY    1
#define SOFTIRQ_KEY(n) ((1ull << 61) | (uint32_t)(n))
#define IRQ_KEY(n)     ((1ull << 62) | (uint32_t)(n))
#define VECTOR_KEY(n)  ((1ull << 63) | (uint32_t)(n))

/* A context ends without its exit event. */
static void pop_missing(struct builder *b, struct core *core, uint64_t ts)
{
	unsigned int kind = core_call(core, core->depth - 1)->kind;

	b->repairs.syscall_exit_missing += kind == C_SYSCALL;
	b->repairs.softirq_exit_missing += kind == C_SOFTIRQ;
	b->repairs.hardirq_exit_missing += kind == C_HARDIRQ;
	core_pop(core, ts, MISSING);
}

/* A switch or a system call cannot happen inside an interrupt: open interrupts have ended. */
static void pop_irqs(struct builder *b, struct core *core, uint64_t ts)
{
	const struct nsight_call *top;

	while (core->depth && (top = core_call(core, core->depth - 1)) &&
	       (top->kind == C_SOFTIRQ || top->kind == C_HARDIRQ))
		pop_missing(b, core, ts);
}

static void pop_all(struct core *core, uint64_t ts, enum known end_known)
{
	while (core->depth)
		core_pop(core, ts, end_known);
}

/*
 * Is the thread inside a system call now? Its next event decides, if there is one. That repairs
 * lost enters and exits, and finds the call in which a thread sleeps when recording starts.
 */
static bool in_syscall(struct builder *b, struct thread *th)
{
	const struct nsight_event *next;

	if (th->next_sys == NO_EVENT)
		return th->in_syscall;
	next = &b->events[th->next_sys];
	if (next->kind == K_SYS_ENTER) {
		b->repairs.syscall_exit_missing += th->in_syscall;
		th->in_syscall = false;
	} else if (!th->in_syscall || (next->a != th->syscall && next->a != -1)) {
		b->repairs.syscall_exit_missing += th->in_syscall;
		/* a new thread returns from its parent's clone(): nothing is missing */
		b->repairs.syscall_enter_missing += !th->forked;
		th->in_syscall = true;
		th->syscall = next->a;
		th->syscall_arg = -1;
		th->syscall_start_known = th->forked ? INFERRED : MISSING;
	}
	th->forked = false;
	return th->in_syscall;
}

static void push_syscall(struct core *core, const struct thread *th, uint64_t ts, enum known known)
{
	core_push(core, ts, C_SYSCALL, SYSCALL_KEY, th->syscall, known)->arg = th->syscall_arg;
}

/* Thread tid gets the core; the core's stack is empty. */
static void push_base(struct builder *b, struct core *core, uint64_t ts, int32_t tid,
		      enum known known)
{
	struct thread *th = threads_get(&b->threads, tid);
	struct nsight_call *call;

	core->base_pending = false;
	core->comm = th->comm;
	call = core_push(core, ts, tid ? C_THREAD : C_IDLE, BASE_KEY, tid ? th->comm : 0, known);
	call->tid = tid;
	call->pid = th->pid;
	if (tid && in_syscall(b, th)) {
		push_syscall(core, th, ts, th->syscall_start_known == MISSING ? MISSING : INFERRED);
		th->syscall_start_known = INFERRED; /* for its later pieces */
	}
}

static void switch_to(struct builder *b, struct core *core, uint64_t ts, int32_t tid)
{
	pop_irqs(b, core, ts);
	if (core->depth == 2) {
		b->repairs.cut_by_switch++;
		core_pop(core, ts, INFERRED);
	}
	pop_all(core, ts, MEASURED);
	push_base(b, core, ts, tid, MEASURED);
}

static void irq_entry(struct builder *b, struct core *core, uint64_t ts, enum context_kind kind,
		      uint64_t key, uint32_t name, int64_t arg)
{
	int open = -1;

	for (int i = 0; i < core->depth && open < 0; i++)
		if (core->frame[i].key == key ||
		    (kind == C_SOFTIRQ && core_call(core, i)->kind == C_SOFTIRQ))
			open = i;
	/* an interrupt cannot interrupt itself, nor a softirq another one: the open one has
	 * ended */
	while (open >= 0 && core->depth > open)
		pop_missing(b, core, ts);
	if (core->depth == MAX_DEPTH) {
		b->repairs.too_deep++;
		pop_irqs(b, core, ts);
	}
	core_push(core, ts, kind, key, name, MEASURED)->arg = arg;
}

static void irq_exit(struct builder *b, struct core *core, uint64_t ts, enum context_kind kind,
		     uint64_t key, uint32_t name, int64_t arg, uint32_t others)
{
	int open = core->depth - 1;

	while (open >= 0 && core->frame[open].key != key)
		open--;
	if (open < 0) {
		b->repairs.softirq_entry_missing += kind == C_SOFTIRQ;
		b->repairs.hardirq_entry_missing += kind != C_SOFTIRQ;
		if (core->depth < MAX_DEPTH)
			core_insert(core, ts, kind, name)->arg = arg;
		return;
	}
	while (core->depth - 1 > open)
		pop_missing(b, core, ts);
	core_call(core, open)->others = others;
	core_pop(core, ts, MEASURED);
}

static void sys_enter(struct builder *b, struct core *core, const struct nsight_event *ev)
{
	struct thread *th = threads_get(&b->threads, ev->tid);

	pop_irqs(b, core, ev->ts);
	if (core->depth == 2)
		pop_missing(b, core, ev->ts);
	th->in_syscall = true;
	th->forked = false;
	th->syscall = ev->a;
	th->syscall_arg = ev->b;
	th->syscall_start_known = MEASURED;
	push_syscall(core, th, ev->ts, MEASURED);
}

static void sys_exit(struct builder *b, struct core *core, const struct nsight_event *ev)
{
	struct thread *th = threads_get(&b->threads, ev->tid);

	pop_irqs(b, core, ev->ts);
	th->in_syscall = false;
	/* rt_sigreturn, and execve of another ABI, return with number -1 */
	if (core->depth == 2 && (ev->a == -1 || ev->a == th->syscall)) {
		core_pop(core, ev->ts, MEASURED);
		return;
	}
	if (core->depth == 2)
		pop_missing(b, core, ev->ts);
	b->repairs.syscall_enter_missing++;
	core_insert(core, ev->ts, C_SYSCALL, ev->a);
}

/* perf lost events of this core between the last event and now: nothing is known about it. */
static void lost(struct builder *b, struct core *core, uint64_t ts)
{
	pop_all(core, core->last, INFERRED);
	if (core->started && ts > core->last) {
		b->repairs.gaps++;
		b->repairs.gap_ns += ts - core->last;
		core->comm = 0;
		core_push(core, core->last, C_GAP, BASE_KEY, 0, MEASURED);
		core_pop(core, ts, MEASURED);
	}
	core->since = core->last = ts;
	core->started = core->base_pending = true;
}

/*
 * When did the thread of ev get the core, if no switch showed it? At ev, the first sign of it.
 * There is one exception: if that sign is that the thread leaves again, it must have come earlier,
 * when it was woken, if the core was idle until then. (Some hosts trace nothing on idle cores.)
 */
static uint64_t switch_time(struct builder *b, const struct core *core,
			    const struct nsight_event *ev)
{
	uint64_t woken = threads_get(&b->threads, ev->tid)->woken;

	if (ev->kind == K_SCHED_SWITCH && core_call(core, 0)->kind == C_IDLE && woken > core->last)
		return woken;
	return ev->ts;
}

/*
 * The thread of ev runs, but no switch showed it. No switch can happen inside an interrupt: an open
 * interrupt has already interrupted this thread.
 */
static void switch_unseen(struct builder *b, struct core *core, const struct nsight_event *ev)
{
	uint64_t ts = switch_time(b, core, ev), since = core->since;
	struct frame irqs[MAX_DEPTH];
	int n;

	b->repairs.switch_missing++;
	if (ev->kind == K_SCHED_SWITCH || ev->kind == K_SYS_ENTER || ev->kind == K_SYS_EXIT) {
		pop_all(core, ts, MISSING);
		push_base(b, core, ts, ev->tid, MISSING);
		return;
	}
	if (core->depth == MAX_DEPTH) {
		b->repairs.too_deep++;
		pop_missing(b, core, ts);
		since = core->since;
	}
	n = core_lift_irqs(core, irqs);
	if (n)
		ts = core->calls[irqs[0].call].start;
	pop_all(core, ts, MISSING);
	push_base(b, core, ts, ev->tid, MISSING);
	core_put_irqs(core, irqs, n);
	if (n)
		core->since = since;
}

/* The host had taken the core away, for ns: nothing can have changed on it during that time. why: 0
 * steal time, 1 missed ticks. */
static void absent(struct core *core, uint64_t ts, int64_t ns, uint32_t why)
{
	uint64_t since = ns > 0 && (uint64_t)ns < ts ? ts - ns : 0;

	if (core->base_pending || core->depth == MAX_DEPTH || ns <= 0)
		return;
	if (since < core->since)
		since = core->since;
	core_push(core, since, C_ABSENT, 0, why, MEASURED)->arg = ns;
	core_pop(core, ts, MEASURED);
	core->last = ts; /* a context that it interrupted cannot end before it */
}

static void core_event(struct builder *b, const struct nsight_event *ev)
{
	struct core *core = b->cores[ev->cpu];
	bool is_switch_record = ev->kind == K_SWITCH_IN || ev->kind == K_SWITCH_OUT;

	if (is_switch_record && b->have_sched_switch)
		return; /* shows the same, a little later */
	if (!core) {
		core = b->cores[ev->cpu] = xrealloc(NULL, 1, sizeof(*core));
		memset(core, 0, sizeof(*core));
		core->cpu = ev->cpu;
		core->base_pending = true;
		core->since = core->last = ev->ts;
	}
	if (ev->kind == K_LOST) {
		lost(b, core, ev->ts);
		return;
	}
	if (ev->tid < 0)
		return;
	if (core->base_pending) {
		b->repairs.cut_at_start += !core->started;
		push_base(b, core, core->since, ev->tid, INFERRED);
	} else if (core_call(core, 0)->tid != ev->tid && !is_switch_record) {
		switch_unseen(b, core, ev);
	}
	core->started = true;

	switch (ev->kind) {
	case K_SCHED_SWITCH:
		switch_to(b, core, ev->ts, ev->a);
		break;
	case K_SWITCH_OUT:
		if (ev->a >= 0)
			switch_to(b, core, ev->ts, ev->a);
		break;
	case K_SWITCH_IN:
		if (core_call(core, 0)->tid != ev->tid)
			switch_to(b, core, ev->ts, ev->tid);
		break;
	case K_SYS_ENTER:
		if (ev->tid)
			sys_enter(b, core, ev);
		break;
	case K_SYS_EXIT:
		if (ev->tid)
			sys_exit(b, core, ev);
		break;
	case K_SOFTIRQ_ENTRY:
		irq_entry(b, core, ev->ts, C_SOFTIRQ, SOFTIRQ_KEY(ev->a), ev->a, ev->a);
		break;
	case K_SOFTIRQ_EXIT:
		irq_exit(b, core, ev->ts, C_SOFTIRQ, SOFTIRQ_KEY(ev->a), ev->a, ev->a, ev->c);
		break;
	case K_IRQ_HANDLER_ENTRY:
		irq_entry(b, core, ev->ts, C_HARDIRQ, IRQ_KEY(ev->a), ev->c, ev->a);
		break;
	case K_IRQ_HANDLER_EXIT:
		irq_exit(b, core, ev->ts, C_HARDIRQ, IRQ_KEY(ev->a), 0, ev->a, 0);
		break;
	case K_VECTOR_ENTRY:
		irq_entry(b, core, ev->ts, C_HARDIRQ, VECTOR_KEY(ev->c), ev->c, ev->a);
		break;
	case K_VECTOR_EXIT:
		irq_exit(b, core, ev->ts, C_HARDIRQ, VECTOR_KEY(ev->c), ev->c, ev->a, 0);
		break;
	case K_CPU_IDLE:
		if (core->depth && core_call(core, 0)->kind == C_IDLE &&
		    ev->a > core_call(core, 0)->arg)
			core_call(core, 0)->arg = ev->a;
		break;
	}
	core->last = ev->ts;
}

/* Backwards, so that each thread ends up with what is known first about it. */
static void look_ahead(struct builder *b)
{
	for (size_t i = b->n; i-- > 0;) {
		const struct nsight_event *ev = &b->events[i];

		threads_learn(&b->threads, ev);
		b->have_sched_switch |= ev->kind == K_SCHED_SWITCH;
		if ((ev->kind == K_SYS_ENTER || ev->kind == K_SYS_EXIT) && ev->tid > 0) {
			struct thread *th = threads_get(&b->threads, ev->tid);

			b->next_sys[i] = th->next_sys;
			th->next_sys = i;
		}
	}
}

void nest(struct builder *b)
{
	threads_init(&b->threads);
	b->next_sys = xrealloc(NULL, b->n + 1, sizeof(*b->next_sys));
	look_ahead(b);
	for (size_t i = 0; i < b->n; i++) {
		const struct nsight_event *ev = &b->events[i];

		threads_learn(&b->threads, ev);
		if (ev->kind == K_SCHED_PROCESS_FORK || (ev->kind == K_FORK && ev->ts)) {
			threads_get(&b->threads, ev->a)->forked = true;
			threads_get(&b->threads, ev->a)->in_syscall = false;
		}
		if (ev->kind == K_SCHED_PROCESS_EXEC)
			threads_exec(&b->threads, ev);
		if (ev->kind == K_SCHED_WAKING)
			threads_get(&b->threads, ev->a)->woken = ev->ts;
		if (ev->kind == K_COMM || ev->kind == K_FORK || ev->kind == K_EXIT ||
		    ev->kind == K_THROTTLE || ev->kind == K_UNTHROTTLE)
			continue;
		/* on devices and on the machine: they do not show which thread ran */
		if (ev->kind == K_STEAL && (ev->b == 1 || ev->b == 3) && ev->cpu < NSIGHT_NO_CPU &&
		    b->cores[ev->cpu])
			absent(b->cores[ev->cpu], ev->ts, ev->a, ev->b == 3);
		if (ev->kind >= K_BLOCK_IO)
			continue;
		if (ev->cpu < NSIGHT_NO_CPU && ev->ts)
			core_event(b, ev);
		else if (ev->kind == K_LOST)
			b->repairs.lost_without_place++;
		if ((ev->kind == K_SYS_ENTER || ev->kind == K_SYS_EXIT) && ev->tid > 0)
			threads_get(&b->threads, ev->tid)->next_sys = b->next_sys[i];
	}
	for (size_t i = 0; i < NSIGHT_NO_CPU; i++) {
		if (!b->cores[i])
			continue;
		b->repairs.cut_at_end += b->cores[i]->depth;
		pop_all(b->cores[i], b->cores[i]->last, INFERRED);
	}
}
