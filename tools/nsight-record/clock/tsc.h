/* SPDX-License-Identifier: GPL-2.0-only */
/* Ordered readings of the timestamp counter. */
#ifndef NSIGHT_TSC_H
#define NSIGHT_TSC_H

#ifndef __x86_64__
#error "nsight-clock reads the x86-64 timestamp counter"
#endif

#include <stdint.h>
#include <x86intrin.h>

/*
 * Not earlier than any load before it, not later than any load after it.
 * Without the fences the CPU may read the TSC before or after the state that
 * the value is meant to bracket.
 */
static inline uint64_t tsc_ordered(void)
{
	uint64_t tsc;

	_mm_lfence();
	tsc = __rdtsc();
	_mm_lfence();
	return tsc;
}

#endif
