// SPDX-License-Identifier: GPL-2.0-only
#include "thread_table.h"

#include "context_stack.h"
#include "util.h"

#include <stdlib.h>
#include <string.h>

static struct thread *find(const struct thread_table *t, int32_t tid)
{
	size_t h = (uint32_t)tid * 2654435769u;

	for (h = (h ^ (h >> 15)) & t->mask; t->slot[h].used; h = (h + 1) & t->mask)
		if (t->slot[h].tid == tid)
			break;
	return &t->slot[h];
}

static void resize(struct thread_table *t, size_t size)
{
	struct thread *old = t->slot;
	size_t old_size = old ? t->mask + 1 : 0;

	t->slot = xrealloc(NULL, size, sizeof(*t->slot));
	memset(t->slot, 0, size * sizeof(*t->slot));
	t->mask = size - 1;
	for (size_t i = 0; i < old_size; i++)
		if (old[i].used)
			*find(t, old[i].tid) = old[i];
	free(old);
}

void threads_init(struct thread_table *t)
{
	memset(t, 0, sizeof(*t));
	resize(t, 1024);
}

struct thread *threads_get(struct thread_table *t, int32_t tid)
{
	struct thread *th = find(t, tid);

	if (th->used)
		return th;
	if (t->n >= t->mask / 2) {
		resize(t, (t->mask + 1) * 2);
		th = find(t, tid);
	}
	t->n++;
	*th = (struct thread){.tid = tid,
			      .pid = tid ? -1 : 0,
			      .used = true,
			      .next_sys = NO_EVENT,
			      .syscall_arg = -1};
	return th;
}

void threads_learn(struct thread_table *t, const struct nsight_event *ev)
{
	uint32_t comm = ev->c;
	struct thread *th;

	if (ev->kind == K_COMM || ev->kind == K_FORK) {
		th = threads_get(t, ev->a);
		th->pid = ev->pid;
		if (ev->kind == K_COMM && comm)
			th->comm = comm;
		return;
	}
	if (ev->tid > 0 && ev->pid > 0)
		threads_get(t, ev->tid)->pid = ev->pid;
	switch (ev->kind) {
	case K_SCHED_SWITCH:
		if (comm && ev->tid)
			threads_get(t, ev->tid)->comm = comm;
		comm = (uint64_t)ev->c >> 32;
		/* fall through */
	case K_SCHED_WAKING:
	case K_SCHED_WAKEUP:
	case K_SCHED_WAKEUP_NEW:
	case K_SCHED_PROCESS_FORK:
		if (comm && ev->a)
			threads_get(t, ev->a)->comm = comm;
		break;
	}
}

void threads_exec(struct thread_table *t, const struct nsight_event *ev)
{
	struct thread old = *threads_get(t, ev->b), *th;

	if (ev->a == ev->b)
		return;
	threads_get(t, ev->b)->in_syscall = false;
	if (!old.in_syscall)
		return;
	th = threads_get(t, ev->a);
	th->in_syscall = true;
	th->syscall = old.syscall;
	th->syscall_arg = old.syscall_arg;
	th->syscall_start_known = INFERRED;
}
