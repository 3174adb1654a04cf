// SPDX-License-Identifier: GPL-2.0-only
/* Reads the vvar page and proves that the layout is right. */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tsc.h"
#include "vvar.h"

#define NSEC_PER_SEC 1000000000LL
#define PAGE	     4096
/* A layout is accepted only if it gets this many readings right. */
#define N_PROOFS 64
/* A writer holds the sequence count odd for well under a microsecond. */
#define MAX_RETRIES 10000000

bool vvar_read(const struct vvar *v, struct vvar_state *s)
{
	const volatile unsigned char *p = v->page;
	const struct vvar_layout *at = &v->at;

	for (int i = 0; i < MAX_RETRIES; i++) {
		s->seq = vvar_seq(v);
		if (s->seq & 1) {
			_mm_pause();
			continue;
		}
		atomic_thread_fence(memory_order_acquire);
		s->mode = *(const volatile int32_t *)(p + at->mode);
		s->cycle_last = *(const volatile uint64_t *)(p + at->cycle_last);
		s->mult = *(const volatile uint32_t *)(p + at->mult);
		s->shift = *(const volatile uint32_t *)(p + at->shift);
		for (int c = 0; c < VVAR_NR; c++) {
			s->sec[c] = *(const volatile uint64_t *)(p + at->sec[c]);
			s->snsec[c] = *(const volatile uint64_t *)(p + at->nsec[c]);
		}
		atomic_thread_fence(memory_order_acquire);
		if (vvar_seq(v) == s->seq)
			return true;
	}
	return false;
}

int64_t vvar_ns(const struct vvar_state *s, enum vvar_clock clock, uint64_t tsc)
{
	/* Like the vDSO: a TSC value before cycle_last counts as cycle_last. */
	uint64_t delta = tsc > s->cycle_last ? tsc - s->cycle_last : 0;
	unsigned __int128 ns = (unsigned __int128)delta * s->mult + s->snsec[clock];

	return (int64_t)(s->sec[clock] * NSEC_PER_SEC + (uint64_t)(ns >> s->shift));
}

static const volatile unsigned char *find_page(void)
{
	const volatile unsigned char *page = NULL;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	if (!maps)
		return NULL;
	while (!page && fgets(line, sizeof(line), maps)) {
		unsigned long start;
		const char *name = strstr(line, "[vvar]");

		if (name && sscanf(line, "%lx-", &start) == 1)
			page = (const volatile unsigned char *)start;
	}
	fclose(maps);
	return page;
}

/* One clock_gettime() of each clock must lie between the conversions around it. */
static bool proof(const struct vvar *v)
{
	struct vvar_state s;

	for (int c = 0; c < VVAR_NR; c++) {
		bool stable = false;

		for (int i = 0; i < 100 && !stable; i++) {
			struct timespec ts;
			uint64_t before, after;
			int64_t ns;

			if (!vvar_read(v, &s) || s.mode != VVAR_MODE_TSC || !s.mult || s.shift > 32)
				return false;
			before = tsc_ordered();
			if (clock_gettime(vvar_clockid[c], &ts))
				return false;
			after = tsc_ordered();
			stable = vvar_seq(v) == s.seq;
			if (!stable)
				continue;
			ns = ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
			if (ns < vvar_ns(&s, c, before) || ns > vvar_ns(&s, c, after))
				return false;
		}
		if (!stable)
			return false;
	}
	return true;
}

const char *vvar_open(struct vvar *v)
{
	unsigned int n_layouts = 0;
	bool other_clocksource = false;

	v->page = find_page();
	if (!v->page)
		return "this process has no [vvar] page (vdso=0 on the kernel's command line?)";

	for (unsigned int n = 0; n < VVAR_N_LAYOUTS; n++) {
		bool good = true;
		struct vvar_state s;

		if (!vvar_layout_get(n, &v->at) || v->at.end > PAGE)
			continue;
		n_layouts++;
		for (int i = 0; i < N_PROOFS && good; i++)
			good = proof(v);
		if (good)
			return NULL;
		/* A plausible small mode that is not TSC, and no time namespace (INT_MAX). */
		if (vvar_read(v, &s) && s.mode != VVAR_MODE_TSC && s.mode >= 0 && s.mode <= 3 &&
		    s.mult)
			other_clocksource = true;
	}
	if (other_clocksource)
		return "the clocksource is not the raw TSC";
	if (n_layouts)
		return "no known layout of the vvar page agrees with clock_gettime()";
	return "/sys/kernel/btf/vmlinux does not describe the vvar page";
}
