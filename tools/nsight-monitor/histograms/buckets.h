/* SPDX-License-Identifier: GPL-2.0-only */
/* The bucket of a latency. */
#ifndef NSIGHT_MONITOR_BUCKETS_H
#define NSIGHT_MONITOR_BUCKETS_H

#include "stages.h"

/* How many bits a number has. volatile: clang would put its knowledge of the values in the place of
 * the comparison that the verifier needs. */
static const volatile __u8 bits[256] = {
	[1] = 1,	 [2 ... 3] = 2,	  [4 ... 7] = 3,    [8 ... 15] = 4,
	[16 ... 31] = 5, [32 ... 63] = 6, [64 ... 127] = 7, [128 ... 255] = 8,
};

/* The exponent of the smallest power of two that is not below ns. BPF has no instruction for that,
 * and clang makes 75 instructions of the usual loop. */
static inline __attribute__((always_inline)) __u32 bucket_of(__u64 ns)
{
	__u32 bucket;

	if (!ns)
		return 0;
	ns--;
	/* If a caller has compared it, clang leaves out comparisons that the verifier of Linux 6.1
	 * needs. */
	__asm__ volatile("" : "+r"(ns));
	if (ns < 1ull << 8)
		bucket = bits[ns];
	else if (ns < 1ull << 16)
		bucket = 8 + bits[ns >> 8];
	else if (ns < 1ull << 24)
		bucket = 16 + bits[ns >> 16];
	else if (ns < 1ull << 32)
		bucket = 24 + bits[ns >> 24];
	else if (ns < 1ull << 40)
		bucket = 32 + bits[ns >> 32];
	else
		bucket = N_BUCKETS;
	return bucket < N_BUCKETS ? bucket : N_BUCKETS - 1;
}

#endif
