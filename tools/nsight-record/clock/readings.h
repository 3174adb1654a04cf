/* SPDX-License-Identifier: GPL-2.0-only */
/* What nsight-clock reads, and the lines that it writes. */
#ifndef NSIGHT_READINGS_H
#define NSIGHT_READINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "fail.h"
#include "phc.h"
#include "vvar.h"

#define MAX_PHC 8

struct recorder {
	int out;
	const char *out_name;
	bool have_vvar;
	struct vvar vvar;
	struct vvar_state state;
	uint64_t seen; /* TSC at which state was last known to be in force */
	struct phc phc[MAX_PHC];
	int n_phc;
	uint64_t tsc_khz;
	uint64_t polls, updates, missed, phc_failures;
	unsigned int calm, calm_missed; /* updates in a row on one line; missed in between */
};

/* Write one line. */
void emit(struct recorder *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t now_ns(clockid_t clock);
/* Read the timekeeper's state; returns a TSC value at which it was in force. */
uint64_t read_state(struct recorder *r);
/* Write a V line: the state came into force between the two TSC values. */
void emit_state(struct recorder *r, uint64_t prev, uint64_t now);
/* Look at the page; write a V line if the timekeeper was updated since. */
void poll_vvar(struct recorder *r);
/* Whether nobody disciplines the clock, so that it can be polled less often. */
bool is_calm(const struct recorder *r);
/* Write a B line for each clock. */
void read_brackets(struct recorder *r);
/* Write a P line for each PTP hardware clock. */
void read_phcs(struct recorder *r);
/* Find the TSC's rate, and write the header: that rate, the clock source and perf's clock. */
void write_header(struct recorder *r);

#endif
