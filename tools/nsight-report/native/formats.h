/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From a tracepoint's format to a plan: which bytes of a raw sample go into which field of
 * struct nsight_event. libtraceevent reads the formats once; samples are then plain loads.
 */
#ifndef NSIGHT_FORMATS_H
#define NSIGHT_FORMATS_H

#include "events.h"
#include "perf_file.h"

enum slot_dest { TO_TID, TO_A, TO_B, TO_C, TO_STR, TO_STR2 };
enum slot_type { SLOT_INT, SLOT_CHARS, SLOT_DATA_LOC, SLOT_REL_LOC };

#define MAX_WANTS 5
#define MAX_SLOTS (MAX_WANTS + 1)

struct plan {
	enum nsight_kind kind;
	uint32_t raw_min; /* bytes that all slots need */
	uint32_t name;	  /* string that goes into c; 0: none */
	int n_slots;
	struct slot {
		uint32_t off, size;
		uint8_t is_signed, type, dest;
	} slots[MAX_SLOTS];
};

struct formats {
	uint64_t n_formats; /* read from the file or the directory */
	uint64_t n_broken;  /* formats that could not be read */
	uint64_t truncated; /* tracing data could not be read to its end */
};

/*
 * Set evt->plan for every tracepoint event of pf that is of use, from pf's tracing data and,
 * for what that lacks, from dir/SYSTEM/EVENT (copies of tracefs' format files; dir may be NULL).
 */
void formats_resolve(struct perf_file *pf, const char *dir, struct strings *strings,
		     struct formats *out);

#endif
