// SPDX-License-Identifier: GPL-2.0-only
#include "records.h"

#include <stdlib.h>
#include <string.h>

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
void records_sort(struct records *rec)
{
	size_t n = rec->n, n_runs = 0, cap = 0, *run = NULL; /* run[i]: where run i starts */
	struct key *key = xrealloc(NULL, n + 1, sizeof(*key));
	struct key *other = xrealloc(NULL, n + 1, sizeof(*other));
	struct nsight_event *sorted;

	for (size_t i = 0; i < n; i++) {
		key[i] = (struct key){rec->events[i].ts, i};
		if (!i || key[i].ts < key[i - 1].ts) {
			GROW(run, n_runs, cap);
			run[n_runs++] = i;
		}
	}
	while (n_runs > 1) {
		size_t out = 0;
		struct key *swap = key;

		for (size_t r = 0; r < n_runs; r += 2) {
			size_t mid = r + 1 < n_runs ? run[r + 1] : n;
			size_t right = r + 2 < n_runs ? run[r + 2] : n;

			merge(key, other, run[r], mid, right);
			run[out++] = run[r];
		}
		n_runs = out;
		key = other;
		other = swap;
	}
	free(other);
	free(run);
	sorted = xrealloc(NULL, n + 1, sizeof(*sorted));
	for (size_t i = 0; i < n; i++)
		sorted[i] = rec->events[key[i].at];
	free(key);
	free(rec->events);
	rec->events = sorted;
	rec->cap = n + 1;
}
