/* SPDX-License-Identifier: GPL-2.0-only */
/* perf's own conversion from TSC, from the mmap page of an event. */
#ifndef NSIGHT_PERF_CLOCK_H
#define NSIGHT_PERF_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct perf_clock {
	uint32_t mult;
	uint16_t shift;
	uint64_t zero;
};

/* False where the kernel does not offer it (cap_user_time_zero). */
bool perf_clock_read(struct perf_clock *c);

#endif
