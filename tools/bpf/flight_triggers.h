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
	__u64 number; /* counts all slow messages, from 1; written last */
	__u64 time;   /* CLOCK_MONOTONIC, ns, of the read */
	__u64 latency;
	__u64 limit; /* the limit that it exceeded */
	__u32 laddr, raddr;
	__u32 netns, tid, cpu, len;
	__u16 lport, rport;
	__u32 unused;
};

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
