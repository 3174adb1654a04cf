// SPDX-License-Identifier: GPL-2.0-only
#include "thread_table.h"

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
