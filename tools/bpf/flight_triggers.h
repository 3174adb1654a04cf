/* SPDX-License-Identifier: GPL-2.0-only */
/* What the BPF programs and the flight recorder share; tools/bpf/flight.bpf.h fills it in. */
#ifndef NSIGHT_FLIGHT_TRIGGERS_H
#define NSIGHT_FLIGHT_TRIGGERS_H

#include <linux/types.h>

#define FLIGHT_TRIGGERS 64		    /* kept until the recorder looks at them */
#define FLIGHT_SERVICES 256		    /* each has its own percentile; a power of two */
#define FLIGHT_PROBES	8		    /* places in which a service is looked for */
#define FLIGHT_STEPS	8		    /* buckets for each power of two of ns: 12 % wide */
#define FLIGHT_BUCKETS	(38 * FLIGHT_STEPS) /* up to 18 minutes */

/* A message that was slow when it was read */
struct flight_trigger {
	__u64 number;  /* counts all slow messages, from 1; written last. FLIGHT_WRITING: a program
			* writes this place, and no other program does */
	__u64 skipped; /* the number of the newest one that found this place being written */
	__u64 time;    /* CLOCK_MONOTONIC, ns, of the read */
	__u64 latency;
	__u64 limit; /* the limit that it exceeded */
	__u32 laddr, raddr;
	__u32 netns, tid, cpu, len;
	__u16 lport, rport;
	__u32 unused;
};

#define FLIGHT_WRITING (~0ull)

/*
 * The place of slow message n, counted from 0, for its program to write. NULL: it stays out,
 * because a program that found an older message is still writing there, or because a newer message
 * is there.
 */
static inline struct flight_trigger *flight_trigger_begin(struct flight_trigger *triggers, __u64 n)
{
	struct flight_trigger *t = &triggers[n & (FLIGHT_TRIGGERS - 1)];
	__u64 there = *(volatile __u64 *)&t->number;

	if (there <= n && __sync_val_compare_and_swap(&t->number, there, FLIGHT_WRITING) == there)
		return t;
	/* Each failed attempt means that another program entered its number. */
	for (int i = 0; i < 4; i++) {
		there = *(volatile __u64 *)&t->skipped;
		if (there > n || __sync_val_compare_and_swap(&t->skipped, there, n + 1) == there)
			break;
	}
	return 0;
}

/* An exchange, so that every processor orders it after the fields. */
static inline void flight_trigger_end(struct flight_trigger *t, __u64 n)
{
	__sync_lock_test_and_set(&t->number, n + 1);
}

/* In a service's key, besides the lower port and the network namespace (<< 32) */
#define FLIGHT_LOCAL (1u << 16) /* the port is the local one */
#define FLIGHT_USED  (1u << 17)
#define FLIGHT_UDP   (1u << 18)

/* The latencies of the messages of one port in a network namespace, counted separately for the side
 * that has the port and for the other side */
struct flight_service {
	__u64 key;   /* 0: free */
	__u64 limit; /* ns; set by the flight recorder, 0: not known yet */
	__u64 n[FLIGHT_BUCKETS];
};

/* The bucket in which a latency is counted, and the smallest latency of the bucket after that. */
static inline __u32 flight_bucket(__u64 ns)
{
	__u32 power = 0, bucket;

	for (int step = 32; step; step >>= 1)
		if (ns >> (power + step))
			power += step;
	if (power < 3)
		return ns & 7;
	bucket = (power - 2) * FLIGHT_STEPS + ((ns >> (power - 3)) & 7);
	return bucket < FLIGHT_BUCKETS ? bucket : FLIGHT_BUCKETS - 1;
}

static inline __u64 flight_above(__u32 bucket)
{
	__u32 next = bucket + 1;

	if (next < 2 * FLIGHT_STEPS)
		return next;
	return (__u64)(FLIGHT_STEPS + next % FLIGHT_STEPS) << (next / FLIGHT_STEPS - 1);
}

#endif
