/* SPDX-License-Identifier: GPL-2.0-only */
/* The latencies of each service, as the BPF programs count them: the limits that follow from them,
 * and their ageing. */
#ifndef NSIGHT_SERVICES_H
#define NSIGHT_SERVICES_H

#include "../../bpf/flight_triggers.h"

#include <stdbool.h>

/* Set the limit of each service from its own latencies. */
void services_limit(struct flight_service *services, double percentile);
/*
 * Halve the weight of everything counted so far; a service without messages makes room for another
 * one. up: the first odd count is rounded up; a caller that alternates also removes the last
 * counts.
 */
void services_halve(struct flight_service *services, bool up);

#endif
