/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flight recorder: the rings keep the newest records, and those around a trigger are written
 * out. See Documentation/flight-recorder.md.
 */
#ifndef NSIGHT_FLIGHT_USER_H
#define NSIGHT_FLIGHT_USER_H

#include "../../bpf/flight_triggers.h"
#include "rings.h"

#include <signal.h>

struct flight_options {
	bool on;
	uint64_t before_ns, after_ns;
	uint64_t latency_ns;	 /* 0: no fixed limit */
	double percentile;	 /* 0: none */
	uint64_t drops;		 /* per second, 0: none */
	uint64_t retransmits;	 /* per second, 0: none */
	uint64_t per_hour;	 /* windows per hour */
	uint64_t most_bytes;	 /* total size of all windows */
	int snapshot_pidfd;	 /* perf, which gets SIGUSR2 when a window is written; 0: no perf */
	uint64_t snapshot_bytes; /* maximum that perf writes then */
	double most_cpu;	 /* per cent of all cores that the programs may take; 0: no limit */
	uint64_t pause_ns;	 /* how long the programs pause above it */
};

/* What the BPF programs share with the flight recorder */
struct flight_shared {
	const struct flight_trigger *triggers;
	const uint64_t *n_triggers;
	struct flight_service *services;
	const uint64_t *n_no_service; /* messages of services that did not fit in there */
	volatile bool *stopped;
	volatile uint64_t *watched_from; /* when stopped was last cleared */
	struct bpf_object *object;
	/* Detach the programs at system calls, which cost most; false: none were attached. */
	bool (*leave_syscalls)(void);
};

/*
 * Run until *stop. *asked: how many windows the user requested by signal. Prints each window,
 * refused triggers, and at the end the totals, as one JSON object per line.
 */
void flight_run(struct rings *rings, const struct flight_options *options,
		const struct flight_shared *shared, bool activity, uint64_t every_ms,
		const volatile sig_atomic_t *stop, const volatile sig_atomic_t *asked);

#endif
