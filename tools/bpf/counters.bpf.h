/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Performance counters of each core: how much they grew since the last reading. They are read when
 * a thread gets or leaves the core and at the marks of intervals.
 */
#ifndef NSIGHT_COUNTERS_BPF_H
#define NSIGHT_COUNTERS_BPF_H

#include "ring.bpf.h"

const volatile __u32 n_counters;

/* The events of one counter on all cores */
#define COUNTER(n)                                                                                 \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);                                       \
		__uint(key_size, sizeof(__u32));                                                   \
		__uint(value_size, sizeof(__u32));                                                 \
	} counter##n SEC(".maps");

COUNTER(0)
COUNTER(1)
COUNTER(2)
COUNTER(3)
COUNTER(4)

/* A program that interrupts this one between the reading and the exchange has already counted the
 * events up to then. The difference here is then negative, and the next reading's is too large;
 * their sum is right. */
static __always_inline __u64 grown(void *of, __u64 *last)
{
	struct bpf_perf_event_value value = {};

	if (bpf_perf_event_read_value(of, BPF_F_CURRENT_CPU, &value, sizeof(value)))
		return 0;
	return value.counter - __sync_lock_test_and_set(last, value.counter);
}

static __always_inline void put_counters(struct nsr_control *c, __u64 now)
{
	__u64 index, *record;

	if (!n_counters)
		return;
	record = reserve(c, NSR_COUNTERS, now, &index);
	if (!record)
		return;
	record[1] = grown(&counter0, &c->counters[0]);
	record[2] = n_counters > 1 ? grown(&counter1, &c->counters[1]) : 0;
	record[3] = n_counters > 2 ? grown(&counter2, &c->counters[2]) : 0;
	record[4] = n_counters > 3 ? grown(&counter3, &c->counters[3]) : 0;
	record[5] = n_counters > 4 ? grown(&counter4, &c->counters[4]) : 0;
	commit(record, index, NSR_COUNTERS, now);
}

#endif
