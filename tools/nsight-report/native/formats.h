/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From a tracepoint's format to a plan: which bytes of a raw sample go into which field of
 * struct nsight_event. Formats are read once (format_text.h); samples are then plain loads.
 */
#ifndef NSIGHT_FORMATS_H
#define NSIGHT_FORMATS_H

#include "events.h"
#include "perf_file.h"
#include "wide.h"

enum slot_dest { TO_TID, TO_A, TO_B, TO_C, TO_STR, TO_STR2 };
enum slot_type { SLOT_INT, SLOT_CHARS, SLOT_DATA_LOC, SLOT_REL_LOC };

#define MAX_WANTS 5
#define MAX_SLOTS WIDE_VALUES /* more than MAX_WANTS + 1 */

struct plan {
	enum nsight_kind kind;
	bool wide; /* into struct nsight_wide, as wide_kind */
	enum wide_kind wide_kind;
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
 * Set evt->plan for every tracepoint event of pf that is of use (with wide: also those of wide.h),
 * from pf's tracing data and, for what that lacks, from dir/SYSTEM/EVENT (copies of tracefs' format
 * files; dir may be NULL).
 */
void formats_resolve(struct perf_file *pf, const char *dir, struct strings *strings, bool wide,
		     struct formats *out);

struct format;
struct format_field;
struct records;
struct sample_id;

/* Where a field lies; false: it cannot be read as what dest wants. */
bool make_slot(const struct format_field *field, enum slot_dest dest, struct slot *slot);
int64_t load_int(const unsigned char *p, const struct slot *slot);

/* The plan of an event of wide.h; NULL: it is none, or evt->fate says that a field is missing. */
const struct plan *wide_plan(const struct format *event, struct perf_evt *evt);
void wide_decode(struct records *rec, const struct plan *plan, const struct sample_id *id,
		 const unsigned char *raw, uint32_t raw_len);
/* The clock of a PERF_RECORD_TIME_CONV, if it has one; p: the record's body. */
void wide_clock(struct records *rec, const unsigned char *p, size_t words);
void wide_sort(struct records *rec);

#endif
