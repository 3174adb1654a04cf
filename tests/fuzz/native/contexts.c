// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-contexts. The input is one byte, then an array of events. If the byte is 0, the program
 * gets the array unchanged, and refuses most inputs; else kinds are mapped to known ones, and each
 * time is the ns since the previous event.
 */
#include "restart.h"

#include "context_stack.h"
#include "events.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST ((1u << 20) - 1) /* ns between events */

static void make_valid(uint8_t *events, size_t n)
{
	struct nsight_event ev;
	uint64_t now = 0;

	for (size_t i = 0; i < n; i++) {
		memcpy(&ev, events + i * sizeof(ev), sizeof(ev));
		now += ev.ts & LONGEST;
		ev.ts = now;
		ev.kind %= K_COUNT;
		memcpy(events + i * sizeof(ev), &ev, sizeof(ev));
	}
}

/* Indices and times that the readers of both tables rely on */
static void check_tables(void)
{
	struct written calls = restart_written("calls.bin"),
		       pieces = restart_written("contexts.bin");
	size_t n_calls = calls.size / sizeof(struct nsight_call);
	struct nsight_interval piece;
	struct nsight_call call;

	for (size_t i = 0; i < n_calls; i++) {
		memcpy(&call, calls.data + i * sizeof(call), sizeof(call));
		if (call.parent < -1 || call.parent >= (int64_t)i)
			restart_broken("the parent of a call is no call before it");
		if (call.end < call.start || call.children > call.end - call.start)
			restart_broken("a call is shorter than nothing, or than what is in it");
	}
	for (size_t at = 0; at < pieces.size; at += sizeof(piece)) {
		memcpy(&piece, pieces.data + at, sizeof(piece));
		if (piece.call < 0 || piece.call >= (int64_t)n_calls || piece.end <= piece.start)
			restart_broken("a context of no call, or of no length");
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *argv[] = {"nsight-contexts", "/perf-events.bin", "/out", NULL};
	uint8_t *events;

	if (!size)
		return 0;
	events = malloc(size);
	memcpy(events, data + 1, size - 1);
	if (*data) {
		size -= (size - 1) % sizeof(struct nsight_event);
		make_valid(events, (size - 1) / sizeof(struct nsight_event));
	}
	restart_no_files();
	restart_file("perf-events.bin", events, size - 1);
	free(events);
	if (restart_run(argv))
		check_tables();
	return 0;
}
