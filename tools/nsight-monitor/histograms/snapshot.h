/* SPDX-License-Identifier: GPL-2.0-only */
/* A line of JSON: what the cores have counted, added up. */
#ifndef NSIGHT_MONITOR_SNAPSHOT_H
#define NSIGHT_MONITOR_SNAPSHOT_H

#include "groups.h"
#include "stages.h"

#include <bpf/libbpf.h>
#include <stdbool.h>

struct snapshot {
	struct groups groups;
	uint64_t *seen; /* [group]: latencies of all stages, when they were last printed */
	unsigned char *cores;
	size_t core_stride;
	enum group_by group_by;
	struct bpf_object *object;
	bool cost;
};

/* As a callback of libbpf's ring: a line of a slow latency. context: the snapshot */
int snapshot_print_slow(void *context, void *data, size_t size);

/* last: the programs have gone, and the counts are final. False: nobody reads it. */
bool snapshot_print(struct snapshot *s, bool last);

#endif
