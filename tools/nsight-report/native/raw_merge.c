// SPDX-License-Identifier: GPL-2.0-only
#include "raw_merge.h"

#include <stdlib.h>

/* The record with the name comes after the packets. */
static void find_readers(struct raw_recording *rec)
{
	rec->reader_names = calloc(N_READERS, sizeof(*rec->reader_names));
	if (!rec->reader_names)
		die(EXIT_IO, NULL, "out of memory");
	for (size_t i = 0; i < rec->n_files; i++) {
		const struct raw_file *file = &rec->files[i];

		for (size_t k = 0; k < file->n_items; k++) {
			const unsigned char *p;

			if (file->items[k].type != NSR_READER)
				continue;
			p = raw_at(file, &file->items[k]);
			rec->reader_names[load32(p + 8) & (N_READERS - 1)] =
				strings_intern(&rec->strings, (const char *)p + 16, 16);
		}
	}
}

static bool earlier(const struct merge *m, size_t a, size_t b)
{
	const struct raw_file *left = &m->rec->files[a], *right = &m->rec->files[b];
	uint64_t x = left->items[left->next].ts, y = right->items[right->next].ts;

	return x != y ? x < y : a < b;
}

static void sift_down(struct merge *m, size_t at)
{
	size_t file = m->heap[at], below;

	while ((below = 2 * at + 1) < m->n) {
		if (below + 1 < m->n && earlier(m, m->heap[below + 1], m->heap[below]))
			below++;
		if (!earlier(m, m->heap[below], file))
			break;
		m->heap[at] = m->heap[below];
		at = below;
	}
	m->heap[at] = file;
}

/* Threads that already existed have time 0, as in perf.data. */
static void put_threads(struct merge *m)
{
	const struct raw_threads *threads = &m->rec->threads;

	for (size_t i = 0; i < threads->n_tasks; i++) {
		const struct raw_task *task = &threads->tasks[i];
		struct nsight_event ev = {.kind = K_COMM,
					  .cpu = NSIGHT_NO_CPU,
					  .pid = task->pid,
					  .tid = task->tid,
					  .a = task->tid,
					  .c = task->name};

		if (!task->is_exit && task->why == NSR_TASK_WAS_THERE)
			raw_put(m, &ev);
	}
}

void raw_write_events(struct raw_recording *rec, FILE *out)
{
	struct merge *m = xrealloc(NULL, 1, sizeof(*m));

	m->rec = rec;
	m->out = out;
	m->n = m->n_held = 0;
	m->heap = xrealloc(NULL, rec->n_files + 1, sizeof(*m->heap));
	raw_name_vectors(m);
	find_readers(rec);
	put_threads(m);
	for (size_t i = 0; i < rec->n_files; i++) {
		struct raw_file *file = &rec->files[i];

		raw_runs(m, file, file->tid);
		if (file->n_items)
			m->heap[m->n++] = i;
	}
	for (size_t i = m->n; i-- > 0;)
		sift_down(m, i);
	while (m->n) {
		struct raw_file *file = &rec->files[m->heap[0]];

		raw_put_item(m, file, &file->items[file->next]);
		if (++file->next == file->n_items)
			m->heap[0] = m->heap[--m->n];
		if (m->n)
			sift_down(m, 0);
	}
	raw_flush(m);
	free(m->heap);
	free(m);
}
