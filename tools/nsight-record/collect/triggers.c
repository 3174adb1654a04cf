// SPDX-License-Identifier: GPL-2.0-only
#include "triggers.h"

enum trigger_copy trigger_copy(const struct flight_trigger *triggers, uint64_t n,
			       struct flight_trigger *copy)
{
	const struct flight_trigger *t = &triggers[n % FLIGHT_TRIGGERS];
	uint64_t number = __atomic_load_n(&t->number, __ATOMIC_ACQUIRE);

	/* Its program has counted it, but still has to write it, or found its place being written.
	 */
	if (number <= n || number == FLIGHT_WRITING)
		return __atomic_load_n(&t->skipped, __ATOMIC_ACQUIRE) == n + 1 ? TRIGGER_REPLACED
									       : TRIGGER_UNFINISHED;
	*copy = *t;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	/* A program may have begun to replace it during the copy, which is then a mixture. */
	return __atomic_load_n(&t->number, __ATOMIC_RELAXED) == n + 1 ? TRIGGER_COPIED
								      : TRIGGER_REPLACED;
}
