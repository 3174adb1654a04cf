// SPDX-License-Identifier: GPL-2.0-only
#include "readings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf_clock.h"
#include "tsc.h"

#define NSEC_PER_SEC 1000000000LL
#define CLOCKSOURCE  "/sys/devices/system/clocksource/clocksource0/current_clocksource"

/*
 * After this many updates in a row along the same line, nobody disciplines the clock. If the kernel
 * updates more often than it is polled, some updates are missed; after that many missed ones the
 * clock is never called calm again.
 */
#define CALM_UPDATES 64
#define CALM_MISSED  4
/* The tightest of this many readings counts; an interrupt between two readings spoils one. */
#define N_TRIES 5

/* One whole line per write(), so that a killed recorder leaves only whole lines. */
void emit(struct recorder *r, const char *fmt, ...)
{
	char line[512];
	size_t len, done = 0;
	va_list ap;

	va_start(ap, fmt);
	len = (size_t)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	while (done < len) {
		ssize_t n = write(r->out, line + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail(EXIT_OUTPUT,
			     "free some space, or write elsewhere with -o; lines already written "
			     "are usable",
			     "%s: %s", r->out_name, strerror(errno));
		done += (size_t)n;
	}
}

int64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
}

void emit_state(struct recorder *r, uint64_t prev, uint64_t now)
{
	const struct vvar_state *s = &r->state;

	emit(r,
	     "V\t%" PRIu64 "\t%" PRIu64 "\t%u\t%d\t%" PRIu64 "\t%u\t%u"
	     "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
	     "\t%" PRIu64 "\t%" PRIu64 "\n",
	     prev, now, s->seq, s->mode, s->cycle_last, s->mult, s->shift, s->sec[0], s->snsec[0],
	     s->sec[1], s->snsec[1], s->sec[2], s->snsec[2], s->sec[3], s->snsec[3]);
}

/*
 * Read the state and a TSC value at which it was in force. The page is checked again after the TSC;
 * otherwise an update in between would get too early a time.
 */
uint64_t read_state(struct recorder *r)
{
	uint64_t tsc;

	do {
		if (!vvar_read(&r->vvar, &r->state))
			fail(EXIT_MISSING, NULL, "the vvar page never became consistent");
		tsc = tsc_ordered();
	} while (vvar_seq(&r->vvar) != r->state.seq);
	return tsc;
}

/* Whether a state continues the line of the one before. */
static bool same_line(const struct vvar_state *old, const struct vvar_state *new)
{
	bool same = old->mode == new->mode && old->mult == new->mult && old->shift == new->shift;

	for (int c = 0; c < VVAR_NR && same; c++)
		same = vvar_ns(old, c, new->cycle_last) == vvar_ns(new, c, new->cycle_last);
	return same;
}

bool is_calm(const struct recorder *r)
{
	return r->calm >= CALM_UPDATES && r->calm_missed < CALM_MISSED;
}

void poll_vvar(struct recorder *r)
{
	uint64_t before = tsc_ordered(), prev = r->seen, missed;
	struct vvar_state old = r->state;

	r->polls++;
	if (vvar_seq(&r->vvar) == old.seq) {
		r->seen = before;
		return;
	}
	r->seen = read_state(r);
	r->updates++;
	missed = (r->state.seq - old.seq) / 2 - 1;
	r->missed += missed;
	if (is_calm(r))
		r->calm_missed += missed > 0;
	r->calm = same_line(&old, &r->state) ? r->calm + 1 : 0;
	emit_state(r, prev, r->seen);
}

/*
 * Bracketed readings of all clocks. The page is polled again before they are written, so every B
 * line also shows up to when the V line before it was in force. A truncated capture ends at that
 * time.
 */
void read_brackets(struct recorder *r)
{
	uint64_t before[VVAR_NR], after[VVAR_NR];
	int64_t ns[VVAR_NR];

	for (int c = 0; c < VVAR_NR; c++) {
		uint64_t best = UINT64_MAX;

		for (int i = 0; i < N_TRIES; i++) {
			uint64_t t0 = tsc_ordered();
			int64_t n = now_ns(vvar_clockid[c]);
			uint64_t t1 = tsc_ordered();

			if (t1 - t0 >= best)
				continue;
			best = t1 - t0;
			before[c] = t0;
			after[c] = t1;
			ns[c] = n;
		}
	}
	if (r->have_vvar)
		poll_vvar(r);
	for (int c = 0; c < VVAR_NR; c++)
		emit(r, "B\t%s\t%" PRIu64 "\t%" PRId64 "\t%" PRIu64 "\n", vvar_clock_name[c],
		     before[c], ns[c], after[c]);
}

void read_phcs(struct recorder *r)
{
	for (int i = 0; i < r->n_phc; i++) {
		struct phc_reading p;

		if (phc_read(&r->phc[i], &p)) {
			r->phc_failures++;
			continue;
		}
		emit(r, "P\tphc:%s\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\n", r->phc[i].name,
		     r->phc[i].method, p.before, p.phc, p.after);
	}
}

/* The TSC rate from the readings themselves; only the header states it. */
static uint64_t measure_tsc_khz(const struct recorder *r)
{
	struct timespec pause = {.tv_nsec = 20000000};
	uint64_t tsc;
	int64_t ns;

	if (r->have_vvar) /* 2^shift / mult cycles are one nanosecond */
		return (uint64_t)(((unsigned __int128)1000000 << r->state.shift) / r->state.mult);
	ns = now_ns(CLOCK_MONOTONIC_RAW);
	tsc = tsc_ordered();
	nanosleep(&pause, NULL);
	ns = now_ns(CLOCK_MONOTONIC_RAW) - ns;
	tsc = tsc_ordered() - tsc;
	return ns > 0 ? tsc * 1000000 / (uint64_t)ns : 0;
}

static void read_clocksource(char *name, size_t size)
{
	FILE *f = fopen(CLOCKSOURCE, "re");

	snprintf(name, size, "unknown");
	if (f) {
		if (fgets(name, (int)size, f))
			name[strcspn(name, " \t\n")] = 0;
		fclose(f);
	}
}

void write_header(struct recorder *r)
{
	struct perf_clock perf;
	char clocksource[64];

	r->tsc_khz = measure_tsc_khz(r);
	read_clocksource(clocksource, sizeof(clocksource));
	emit(r, "#nsight-clock 1 tsc_khz=%" PRIu64 " clocksource=%s\n", r->tsc_khz, clocksource);
	if (perf_clock_read(&perf))
		emit(r, "C\t%u\t%u\t%" PRId64 "\n", perf.mult, perf.shift, (int64_t)perf.zero);
}
