// SPDX-License-Identifier: GPL-2.0-only
#include "services.h"

#include <stdint.h>

/* A percentile is known when at least this many messages were above it. */
#define LEAST_ABOVE 10

static void set_limit(struct flight_service *s, double percentile)
{
	uint64_t n = 0, above = 0, most;
	int bucket = FLIGHT_BUCKETS;

	for (int b = 0; b < FLIGHT_BUCKETS; b++)
		n += s->n[b];
	most = (uint64_t)(n * (1 - percentile / 100));
	if (most < LEAST_ABOVE)
		return;
	while (bucket > 0 && above + s->n[bucket - 1] <= most)
		above += s->n[--bucket];
	s->limit = bucket < FLIGHT_BUCKETS ? flight_above(bucket - 1) : 0;
}

void services_limit(struct flight_service *services, double percentile)
{
	for (int i = 0; i < FLIGHT_SERVICES; i++)
		if (services[i].key)
			set_limit(&services[i], percentile);
}

void services_halve(struct flight_service *services, bool up)
{
	for (int i = 0; i < FLIGHT_SERVICES; i++) {
		struct flight_service *s = &services[i];
		bool round_up = up;
		uint64_t left = 0;

		if (!s->key)
			continue;
		for (int b = 0; b < FLIGHT_BUCKETS; b++) {
			uint64_t n = s->n[b], half = n / 2 + (n % 2 && round_up);

			/* Of many buckets with one message each, every other one keeps it. */
			round_up ^= n % 2;
			__atomic_fetch_sub(&s->n[b], n - half, __ATOMIC_RELAXED);
			left += half;
		}
		if (left)
			continue;
		s->limit = 0;
		__atomic_store_n(&s->key, 0, __ATOMIC_RELEASE);
	}
}
