/* SPDX-License-Identifier: GPL-2.0-only */
/* The timekeeper's conversion parameters, as the kernel publishes them to the vDSO. */
#ifndef NSIGHT_VVAR_H
#define NSIGHT_VVAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* VDSO_CLOCKMODE_TSC of arch/x86/include/asm/vdso/clocksource.h: cycles are raw TSC */
#define VVAR_MODE_TSC 1

/* The clocks that a state converts to, in the order of the V record. */
enum vvar_clock { VVAR_REALTIME, VVAR_MONOTONIC, VVAR_BOOTTIME, VVAR_TAI, VVAR_NR };

extern const int vvar_clockid[VVAR_NR];
extern const char *const vvar_clock_name[VVAR_NR];

/* Byte offsets of the fields inside the vvar page. */
struct vvar_layout {
	size_t seq, mode, cycle_last, mult, shift;
	size_t sec[VVAR_NR], nsec[VVAR_NR];
	size_t end; /* the fields above all lie before this offset */
};

struct vvar_state {
	uint32_t seq;
	int32_t mode;
	uint64_t cycle_last;
	uint32_t mult, shift;
	uint64_t sec[VVAR_NR];
	uint64_t snsec[VVAR_NR]; /* ns << shift */
};

struct vvar {
	const volatile unsigned char *page;
	struct vvar_layout at;
};

/* How many layouts vvar_layout_get() knows to try. */
#define VVAR_N_LAYOUTS 6

/*
 * Candidate number @n of the layout, from the running kernel's BTF. False
 * when this kernel has no such structure.
 */
bool vvar_layout_get(unsigned int n, struct vvar_layout *layout);

/*
 * Find the page and the layout that agrees with clock_gettime(). Returns NULL
 * on success, else the reason why the page cannot be used.
 */
const char *vvar_open(struct vvar *v);

/* The sequence count; odd while the kernel is writing. */
static inline uint32_t vvar_seq(const struct vvar *v)
{
	return *(const volatile uint32_t *)(v->page + v->at.seq);
}

/* A consistent copy of the state. False if the kernel kept on writing to it. */
bool vvar_read(const struct vvar *v, struct vvar_state *s);

/* The kernel's own arithmetic: ns of @clock at @tsc under state @s. */
int64_t vvar_ns(const struct vvar_state *s, enum vvar_clock clock, uint64_t tsc);

#endif
