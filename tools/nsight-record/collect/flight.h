/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flight recorder: the rings keep the newest records, and what was around a trigger is written
 * out. Documentation/flight-recorder.md describes it.
 */
#ifndef NSIGHT_FLIGHT_USER_H
#define NSIGHT_FLIGHT_USER_H

#include "../../bpf/flight.h"
#include "rings.h"

#include <signal.h>

struct flight_options {
	bool on;
	uint64_t before_ns, after_ns;
	uint64_t latency_ns;	 /* 0: no fixed limit */
	double percentile;	 /* 0: none */
	uint64_t drops;		 /* a second, 0: none */
	uint64_t retransmits;	 /* a second, 0: none */
	uint64_t per_hour;	 /* windows */
	uint64_t most_bytes;	 /* of all windows */
	int snapshot_pidfd;	 /* of perf, that has SIGUSR2 when a window is written; 0: nobody */
	uint64_t snapshot_bytes; /* that it writes then, at most */
	double most_cpu;	 /* per cent of all cores that the programs may take; 0: no limit */
	uint64_t pause_ns;	 /* that they do nothing above it */
};

/* What the BPF programs share with the flight recorder */
struct flight_shared {
	const struct flight_trigger *triggers;
	const uint64_t *n_triggers;
	struct flight_service *services;
	const uint64_t *n_no_service; /* messages of services that found no place there */
	volatile bool *stopped;
	volatile uint64_t *watched_from; /* when it was set back */
	struct bpf_object *object;
	/* Detach the programs at system calls, which cost most; false: there are none. */
	bool (*leave_syscalls)(void);
};

/*
 * Until *stop. *asked: how many windows the user asked for by signal. Prints each window, what was
 * refused, and at the end what there was, as a JSON object in a line.
 */
void flight_run(struct rings *rings, const struct flight_options *options,
		const struct flight_shared *shared, bool activity, uint64_t every_ms,
		const volatile sig_atomic_t *stop, const volatile sig_atomic_t *asked);

#endif
