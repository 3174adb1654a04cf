/* SPDX-License-Identifier: GPL-2.0-only */
/* The bucket of a latency. */
#ifndef NSIGHT_MONITOR_BUCKETS_H
#define NSIGHT_MONITOR_BUCKETS_H

#include "stages.h"

/* How many bits a number has, by the upper six bits of its de Bruijn product. volatile: clang would
 * put its knowledge of the values in the place of the comparison that the verifier needs. */
static const volatile __u8 bits[64] = {
	1,  48, 2,  57, 49, 28, 3,  61, 58, 50, 42, 38, 29, 17, 4,  62, 55, 59, 36, 53, 51, 43,
	22, 45, 39, 33, 30, 24, 18, 12, 5,  63, 47, 56, 27, 60, 41, 37, 16, 54, 35, 52, 21, 44,
	32, 23, 11, 46, 26, 40, 15, 34, 20, 31, 10, 25, 14, 19, 9,  13, 8,  7,	6,  64,
};

/* The exponent of the smallest power of two that is not below ns. BPF has no instruction for that,
 * and clang makes 75 instructions of the usual comparisons. */
static inline __attribute__((always_inline)) __u32 bucket_of(__u64 ns)
{
	__u32 bucket;

	if (ns <= 1)
		return 0;
	ns--;
	ns |= ns >> 1;
	ns |= ns >> 2;
	ns |= ns >> 4;
	ns |= ns >> 8;
	ns |= ns >> 16;
	ns |= ns >> 32;
	bucket = bits[ns * 0x03f79d71b4cb0a89ull >> 58];
	return bucket < N_BUCKETS ? bucket : N_BUCKETS - 1;
}

#endif
