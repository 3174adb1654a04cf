// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the timekeeper's fields lie in the vvar page, from BTF.
 *
 * The structure has had three shapes (include/vdso/datapage.h): vdso_data with the clock's fields
 * inside, the same renamed vdso_time_data, and vdso_time_data holding an array of vdso_clock. It
 * starts at the beginning of the page or, on x86 before the generic data store, 128 bytes into it.
 * All combinations are candidates; vvar_open() takes the one that gives the right time.
 */
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <linux/btf.h>
#include <string.h>
#include <time.h>

#include "vvar.h"

const int vvar_clockid[VVAR_NR] = {
	[VVAR_REALTIME] = CLOCK_REALTIME,
	[VVAR_MONOTONIC] = CLOCK_MONOTONIC,
	[VVAR_BOOTTIME] = CLOCK_BOOTTIME,
	[VVAR_TAI] = CLOCK_TAI,
};

const char *const vvar_clock_name[VVAR_NR] = {
	[VVAR_REALTIME] = "realtime",
	[VVAR_MONOTONIC] = "monotonic",
	[VVAR_BOOTTIME] = "boottime",
	[VVAR_TAI] = "tai",
};

static const struct {
	const char *outer; /* structure at the base */
	const char *inner; /* its array member that holds the clock, or NULL */
	const char *clock; /* structure of that member */
	size_t base;
} shapes[VVAR_N_LAYOUTS] = {
	{"vdso_time_data", "clock_data", "vdso_clock", 0},
	{"vdso_time_data", NULL, "vdso_time_data", 0},
	{"vdso_data", NULL, "vdso_data", 128},
	{"vdso_time_data", "clock_data", "vdso_clock", 128},
	{"vdso_time_data", NULL, "vdso_time_data", 128},
	{"vdso_data", NULL, "vdso_data", 0},
};

/* Byte offset of @member in @type, looking into anonymous unions. */
static bool member_offset(const struct btf *btf, const struct btf_type *type, const char *member,
			  size_t *offset)
{
	const struct btf_member *m = btf_members(type);

	for (int i = 0; i < btf_vlen(type); i++, m++) {
		const char *name = btf__name_by_offset(btf, m->name_off);
		size_t at = btf_member_bit_offset(type, i) / 8;

		if (name && !strcmp(name, member)) {
			*offset = at;
			return true;
		}
		if (name && !*name) {
			const struct btf_type *t = btf__type_by_id(btf, m->type);

			if (t && btf_is_composite(t) && member_offset(btf, t, member, offset)) {
				*offset += at;
				return true;
			}
		}
	}
	return false;
}

static const struct btf_type *find_struct(const struct btf *btf, const char *name)
{
	int id = btf__find_by_name_kind(btf, name, BTF_KIND_STRUCT);

	return id > 0 ? btf__type_by_id(btf, id) : NULL;
}

bool vvar_layout_get(unsigned int n, struct vvar_layout *at)
{
	static struct btf *btf;
	const struct btf_type *outer, *clock, *stamp;
	size_t base, basetime, sec, nsec;

	if (n >= VVAR_N_LAYOUTS)
		return false;
	if (!btf)
		btf = btf__load_vmlinux_btf();
	if (!btf || libbpf_get_error(btf)) {
		btf = NULL;
		return false;
	}
	outer = find_struct(btf, shapes[n].outer);
	clock = find_struct(btf, shapes[n].clock);
	stamp = find_struct(btf, "vdso_timestamp");
	if (!outer || !clock || !stamp)
		return false;

	base = 0;
	if (shapes[n].inner && !member_offset(btf, outer, shapes[n].inner, &base))
		return false;
	base += shapes[n].base;

	if (!member_offset(btf, clock, "seq", &at->seq) ||
	    !member_offset(btf, clock, "clock_mode", &at->mode) ||
	    !member_offset(btf, clock, "cycle_last", &at->cycle_last) ||
	    !member_offset(btf, clock, "mult", &at->mult) ||
	    !member_offset(btf, clock, "shift", &at->shift) ||
	    !member_offset(btf, clock, "basetime", &basetime) ||
	    !member_offset(btf, stamp, "sec", &sec) || !member_offset(btf, stamp, "nsec", &nsec))
		return false;

	at->seq += base;
	at->mode += base;
	at->cycle_last += base;
	at->mult += base;
	at->shift += base;
	for (int i = 0; i < VVAR_NR; i++) {
		size_t entry = base + basetime + (size_t)vvar_clockid[i] * stamp->size;

		at->sec[i] = entry + sec;
		at->nsec[i] = entry + nsec;
	}
	at->end = base + clock->size;
	return true;
}
