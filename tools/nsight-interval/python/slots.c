// SPDX-License-Identifier: GPL-2.0-only
/* Marks for programs that have none of their own, such as Python's: eight pairs, by number. */
#include "../nsight/interval.h"

#include <stddef.h>

#define SLOTS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* clang-format off */
#define SLOT(n)                                                                                    \
	extern unsigned short begin##n __asm__(NSIGHT_SEMAPHORE_(nsight, slot##n##_begin))         \
		__attribute__((visibility("hidden")));                                             \
	static void begin_of##n(void) { NSIGHT_BEGIN(slot##n); }                                   \
	static void end_of##n(void) { NSIGHT_END(slot##n); }
SLOTS(SLOT)

#define ROW(n) {&begin##n, begin_of##n, end_of##n},
/* clang-format on */

/* A pair: how many listen to its begin, and the two marks. */
const struct nsight_slot {
	unsigned short *listeners;
	void (*begin)(void), (*end)(void);
} nsight_slots[] = {SLOTS(ROW)};

const size_t nsight_n_slots = sizeof(nsight_slots) / sizeof(*nsight_slots);
