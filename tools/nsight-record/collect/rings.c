// SPDX-License-Identifier: GPL-2.0-only
#include "rings.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/*
 * Units from ``from`` that are complete, at most up to ``to`` and the end of the ring's memory.
 * What the reader has done with is 0, so a first word that is there is that of a complete record.
 */
static uint64_t complete(const struct ring *ring, uint64_t mask, uint64_t from, uint64_t to,
			 uint64_t *found)
{
	uint64_t at = from;

	while (at < to && (at == from || at & mask)) {
		const uint64_t *unit = (const uint64_t *)(ring->data + (at & mask) * NSR_UNIT);
		uint64_t word = __atomic_load_n(unit, __ATOMIC_ACQUIRE);
		uint32_t type = word & 0xff,
			 units = type == NSR_PAD ? (uint32_t)unit[1] : nsr_units(type);

		if (!word || !units || at + units - from > NSR_MAX_BLOCK / NSR_UNIT)
			break;
		found[type]++;
		at += units;
	}
	return at - from;
}

/* Copy what is new. */
static void drain(struct ring *ring, uint64_t mask)
{
	uint64_t head = __atomic_load_n(&ring->control->head, __ATOMIC_ACQUIRE),
		 now = monotonic_ns(), tail = ring->control->tail, units;

	for (;;) {
		uint64_t found[256] = {0}; /* records by type */
		unsigned char *first = ring->data + (tail & mask) * NSR_UNIT;

		units = complete(ring, mask, tail, head, found);
		if (!units)
			return;
		if (output_block(ring->output, NSR_RECORDS, first, units * NSR_UNIT, now, tail))
			for (int type = 0; type < NSR_N_TYPES; type++)
				ring->output->written[type] += found[type];
		memset(first, 0, units * NSR_UNIT);
		tail += units;
		__atomic_store_n(&ring->control->tail, tail, __ATOMIC_RELEASE);
	}
}

void rings_drain(struct rings *rings)
{
	for (int i = 0; i < rings->n; i++)
		drain(&rings->of[i], rings->mask);
}

/* What a program that was interrupted has reserved and not yet written comes within moments. */
void rings_drain_rest(struct rings *rings)
{
	for (int tries = 0; tries < 100; tries++) {
		bool left = false;

		rings_drain(rings);
		for (int i = 0; i < rings->n; i++)
			left |= rings->of[i].control->tail !=
				__atomic_load_n(&rings->of[i].control->head, __ATOMIC_ACQUIRE);
		if (!left && tries)
			return;
		usleep(1000);
	}
}
