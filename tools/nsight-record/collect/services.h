/* SPDX-License-Identifier: GPL-2.0-only */
/* The latencies of each service, as the BPF programs count them: the limits that follow from them,
 * and their ageing. */
#ifndef NSIGHT_SERVICES_H
#define NSIGHT_SERVICES_H

#include "../../bpf/flight.h"

#include <stdbool.h>

/* The limit of each service from its own latencies. */
void services_limit(struct flight_service *services, double percentile);
/*
 * What was counted so far counts half from now on; a service without messages makes room for
 * another. up: the first odd count is rounded up; a caller that alternates lets the last ones go,
 * too.
 */
void services_halve(struct flight_service *services, bool up);

#endif
