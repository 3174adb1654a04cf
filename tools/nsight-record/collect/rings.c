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

/* The memory of the unit; NULL: no chunk was taken for it yet. */
static unsigned char *unit_at(const struct rings *rings, const struct ring *ring, uint64_t at)
{
	uint64_t n = at >> rings->chunk_shift,
		 place = __atomic_load_n(&ring->control->place[n & (rings->n_chunks - 1)],
					 __ATOMIC_ACQUIRE);
	int chunk = nsr_chunk(place, n);

	if (chunk < 0)
		return NULL;
	return ring->data + (((uint64_t)chunk << rings->chunk_shift) +
			     (at & ((1ull << rings->chunk_shift) - 1))) *
				    NSR_UNIT;
}

/*
 * Complete units from ``from`` on: at most ``room``, up to ``to`` and the end of the chunk. Memory
 * that the reader has finished with is 0, so a nonzero first word belongs to a complete record.
 */
static uint64_t complete(const struct rings *rings, const unsigned char *first, uint64_t from,
			 uint64_t to, uint64_t room, uint64_t *found)
{
	uint64_t at = from, end = (from | ((1ull << rings->chunk_shift) - 1)) + 1;

	if (end > to)
		end = to;
	while (at < end) {
		const uint64_t *unit = (const uint64_t *)(first + (at - from) * NSR_UNIT);
		uint64_t word = __atomic_load_n(unit, __ATOMIC_ACQUIRE);
		uint32_t type = word & 0xff,
			 units = type == NSR_PAD ? (uint32_t)unit[1] : nsr_units(type);

		if (!word || !units || at + units - from > room)
			break;
		found[nsr_counted(type)]++;
		at += units;
	}
	return at - from;
}

/* The reader has finished with the chunk that ends before this unit. */
static void give_back(const struct rings *rings, const struct ring *ring, uint64_t end)
{
	uint64_t n = (end >> rings->chunk_shift) - 1;
	int chunk = nsr_chunk(ring->control->place[n & (rings->n_chunks - 1)], n);

	__atomic_fetch_or(&ring->control->free[chunk / 64], 1ull << chunk % 64, __ATOMIC_RELEASE);
}

/* Collects what follows the units before ``from``, in parts that each lie in one chunk; their
 * number. */
static int gather(const struct rings *rings, const struct ring *ring, uint64_t from, uint64_t to,
		  struct iovec *parts, uint64_t *found)
{
	uint64_t room = NSR_MAX_BLOCK / NSR_UNIT, units;
	int n = 0;

	while (n < OUTPUT_PARTS && from < to) {
		unsigned char *first = unit_at(rings, ring, from);

		units = first ? complete(rings, first, from, to, room, found) : 0;
		if (!units)
			break;
		parts[n++] = (struct iovec){first, units * NSR_UNIT};
		room -= units;
		from += units;
		if (from & ((1ull << rings->chunk_shift) - 1))
			break;
	}
	return n;
}

/* Copy new records; returns their units. */
static uint64_t drain(const struct rings *rings, struct ring *ring)
{
	uint64_t head = __atomic_load_n(&ring->control->head, __ATOMIC_ACQUIRE),
		 now = monotonic_ns(), tail = ring->control->tail, begin = tail;

	while (tail < head) {
		uint64_t found[256] = {0}; /* records by type */
		struct iovec parts[OUTPUT_PARTS];
		int n = gather(rings, ring, tail, head, parts, found);

		if (!n)
			break;
		if (output_records(ring->output, parts, n, now, tail))
			for (int type = 0; type < NSR_N_TYPES; type++)
				ring->output->written[type] += found[type];
		for (int i = 0; i < n; i++) {
			memset(parts[i].iov_base, 0, parts[i].iov_len);
			tail += parts[i].iov_len / NSR_UNIT;
			/* A program that sees the new tail also finds the chunk. */
			if (!(tail & ((1ull << rings->chunk_shift) - 1)))
				give_back(rings, ring, tail);
			__atomic_store_n(&ring->control->tail, tail, __ATOMIC_RELEASE);
		}
	}
	return tail - begin;
}

uint64_t rings_drain(struct rings *rings)
{
	uint64_t units = 0;

	for (int i = 0; i < rings->n; i++)
		units += drain(rings, &rings->of[i]);
	return units * NSR_UNIT;
}

/* A program that was interrupted writes its reserved records within moments. */
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

uint64_t rings_produced(const struct rings *rings, enum nsr_type type)
{
	uint64_t n = 0;

	for (int i = 0; i < rings->n; i++)
		n += rings->of[i].control->produced[type];
	return n;
}

uint64_t rings_drops(const struct rings *rings)
{
	return rings_produced(rings, NSR_DROP) + rings_produced(rings, NSR_DROP_V4) +
	       rings_produced(rings, NSR_DROP_V6);
}
