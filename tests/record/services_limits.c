// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads "LATENCY_NS N" lines from stdin, the messages of one service. With the argument MINUTES, it
 * ages them and prints for each minute whether the service is still there, its messages, and its
 * limit at the 90th percentile.
 */
#include <stdio.h>
#include <stdlib.h>

#include "services.h"

static struct flight_service services[FLIGHT_SERVICES];

int main(int argc, char **argv)
{
	struct flight_service *service = &services[FLIGHT_SERVICES - 1];
	unsigned long long ns, n;

	service->key = FLIGHT_USED;
	while (scanf("%llu %llu", &ns, &n) == 2)
		service->n[flight_bucket(ns)] += n;
	for (int minute = 0; argc == 2 && minute <= atoi(argv[1]); minute++) {
		if (minute)
			services_halve(services, minute % 2);
		services_limit(services, 90);
		n = 0;
		for (int bucket = 0; bucket < FLIGHT_BUCKETS; bucket++)
			n += service->n[bucket];
		printf("%d %llu %llu\n", service->key != 0, n, (unsigned long long)service->limit);
	}
	return 0;
}
