// SPDX-License-Identifier: GPL-2.0-only
#include "raw_threads.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *left, const void *right)
{
	const struct raw_task *a = left, *b = right;

	if (a->tid != b->tid)
		return a->tid < b->tid ? -1 : 1;
	if (a->ts != b->ts)
		return a->ts < b->ts ? -1 : 1;
	/* an exit, and a new thread with the same number, may have the same time */
	return b->is_exit - a->is_exit;
}

/* The end of a thread does not show its name. */
static void carry_names(struct raw_task *tasks, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool same = i && tasks[i - 1].tid == tasks[i].tid;

		tasks[i].known = tasks[i].name || !same ? tasks[i].name : tasks[i - 1].known;
	}
	for (size_t i = n; i-- > 1;)
		if (!tasks[i - 1].known && tasks[i - 1].tid == tasks[i].tid)
			tasks[i - 1].known = tasks[i].known;
}

void raw_threads_init(struct raw_threads *threads, struct raw_file *files, size_t n_files,
		      struct strings *strings)
{
	size_t n = 0;

	for (size_t i = 0; i < n_files; i++)
		n += files[i].n_tasks;
	threads->tasks = xrealloc(NULL, n + 1, sizeof(*threads->tasks));
	for (size_t i = 0; i < n_files; i++) {
		if (files[i].n_tasks)
			memcpy(threads->tasks + threads->n_tasks, files[i].tasks,
			       files[i].n_tasks * sizeof(*files[i].tasks));
		threads->n_tasks += files[i].n_tasks;
		free(files[i].tasks);
		files[i].tasks = NULL;
	}
	qsort(threads->tasks, n, sizeof(*threads->tasks), compare);

	threads->thread = calloc(RAW_TID_MASK + 1, sizeof(*threads->thread));
	if (!threads->thread)
		die(EXIT_IO, NULL, "out of memory");
	for (size_t i = 0; i < n; i++) {
		struct raw_task *task = &threads->tasks[i];
		struct raw_thread *thread = raw_thread(threads, task->tid);

		task->name = strings_intern(strings, task->text, sizeof(task->text));
		if (!thread->n_tasks++) {
			thread->first_task = i;
			thread->pid = task->pid + 1;
		}
		if (!thread->name)
			thread->name = task->name;
	}
	carry_names(threads->tasks, n);
}

void raw_threads_at(const struct raw_threads *threads, uint32_t tid, uint64_t ts, uint32_t *name,
		    int32_t *pid)
{
	const struct raw_thread *thread;
	size_t low, high;

	*name = 0;
	*pid = -1;
	if (!tid || tid > RAW_TID_MASK)
		return;
	thread = raw_thread(threads, tid);
	if (!thread->n_tasks)
		return;
	low = thread->first_task;
	high = low + thread->n_tasks;
	while (high - low > 1) { /* finds the last one that is not later, else the first one */
		size_t middle = low + (high - low) / 2;

		if (threads->tasks[middle].ts <= ts)
			low = middle;
		else
			high = middle;
	}
	*pid = threads->tasks[low].pid;
	*name = threads->tasks[low].known;
}
