/* SPDX-License-Identifier: GPL-2.0-only */
/* One JSON line: the counts of all cores, added up. */
#ifndef NSIGHT_MONITOR_SNAPSHOT_H
#define NSIGHT_MONITOR_SNAPSHOT_H

#include "groups.h"
#include "stages.h"

#include <bpf/libbpf.h>
#include <stdbool.h>

struct snapshot {
	struct groups groups;
	uint64_t *seen; /* [group]: number of latencies in all stages at the last print */
	unsigned char *cores;
	size_t core_stride;
	enum group_by group_by;
	struct bpf_object *object;
	bool cost;
};

/* Callback for libbpf's ring: prints the line of a slow latency. context: the snapshot */
int snapshot_print_slow(void *context, void *data, size_t size);

/* last: the programs are detached, and the counts are final. False: nobody reads the lines. */
bool snapshot_print(struct snapshot *s, bool last);

#endif
