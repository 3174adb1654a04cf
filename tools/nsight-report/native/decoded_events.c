// SPDX-License-Identifier: GPL-2.0-only
#include "decoded_events.h"

#include <stdlib.h>
#include <string.h>

/* 146 years of ns: anything beyond is damage, and would overflow in the tables */
#define MAX_TS (INT64_MAX / 2)

void event_add(struct decoded *out, const struct nsight_event *event)
{
	if (event->ts > MAX_TS) {
		out->n_malformed++;
		return;
	}
	GROW(out->events, out->n, out->cap);
	out->events[out->n++] = *event;
}

void wide_add(struct decoded *out, const struct nsight_wide *event)
{
	if (event->ts > MAX_TS || !event->ts) {
		out->n_malformed++;
		return;
	}
	GROW(out->wide, out->n_wide, out->cap_wide);
	out->wide[out->n_wide] = *event;
	out->wide[out->n_wide].order = (int32_t)out->n_wide;
	out->n_wide++;
}

struct key {
	uint64_t ts;
	uint64_t at;
};

/* Merge two neighbouring sorted runs of from[] into to[]; the left one wins ties. */
static void merge(const struct key *from, struct key *to, size_t left, size_t mid, size_t right)
{
	size_t i = left, j = mid;

	for (size_t k = left; k < right; k++)
		to[k] = i < mid && (j >= right || from[i].ts <= from[j].ts) ? from[i++] : from[j++];
}

/*
 * perf writes each core's buffer in turn, so the file is a sequence of long sorted runs: a
 * natural merge sort takes log2(number of runs) passes, and is stable.
 */
void events_sort(struct decoded *out)
{
	size_t n = out->n, n_runs = 0, cap = 0, *run = NULL; /* run[i]: where run i starts */
	struct key *key = xrealloc(NULL, n + 1, sizeof(*key));
	struct key *other = xrealloc(NULL, n + 1, sizeof(*other));
	struct nsight_event *sorted;

	for (size_t i = 0; i < n; i++) {
		key[i] = (struct key){out->events[i].ts, i};
		if (!i || key[i].ts < key[i - 1].ts) {
			GROW(run, n_runs, cap);
			run[n_runs++] = i;
		}
	}
	while (n_runs > 1) {
		size_t kept = 0;
		struct key *swap = key;

		for (size_t r = 0; r < n_runs; r += 2) {
			size_t mid = r + 1 < n_runs ? run[r + 1] : n;
			size_t right = r + 2 < n_runs ? run[r + 2] : n;

			merge(key, other, run[r], mid, right);
			run[kept++] = run[r];
		}
		n_runs = kept;
		key = other;
		other = swap;
	}
	free(other);
	free(run);
	sorted = xrealloc(NULL, n + 1, sizeof(*sorted));
	for (size_t i = 0; i < n; i++)
		sorted[i] = out->events[key[i].at];
	free(key);
	free(out->events);
	out->events = sorted;
	out->cap = n + 1;
}

static int by_time(const void *a, const void *b)
{
	const struct nsight_wide *x = a, *y = b;

	if (x->ts != y->ts)
		return x->ts > y->ts ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

void wide_sort(struct decoded *out)
{
	if (out->n_wide)
		qsort(out->wide, out->n_wide, sizeof(*out->wide), by_time);
}
