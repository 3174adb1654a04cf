/* SPDX-License-Identifier: GPL-2.0-only */
/* Which bytes of a tracepoint's samples are wanted: formats are read once, samples are plain loads.
 */
#ifndef NSIGHT_PLANS_H
#define NSIGHT_PLANS_H

#include "events.h"
#include "format_text.h"
#include "tracepoint_events.h"

enum slot_dest { TO_TID, TO_A, TO_B, TO_C, TO_STR, TO_STR2 };
enum slot_type { SLOT_INT, SLOT_CHARS, SLOT_DATA_LOC, SLOT_REL_LOC };

/* Where a field lies, and which one it becomes */
struct slot {
	uint32_t off, size;
	uint8_t is_signed, type, dest;
};

#define MAX_SLOTS WIDE_VALUES /* of an event of events.h at most 6 */

struct plan {
	bool wide; /* into struct nsight_wide, as wide_kind */
	enum nsight_kind kind;
	enum wide_kind wide_kind;
	uint32_t raw_min; /* bytes that all slots need */
	uint32_t name;	  /* string that goes into c; 0: none */
	int n_slots;
	struct slot slots[MAX_SLOTS];
};

/* Without slots */
struct plan *plan_new(void);
/* The next slot: a field of the format by its name. false: it is none, or not what dest wants. */
bool plan_add(struct plan *plan, const struct format *format, const char *name,
	      enum slot_dest dest);
/* The next slot: 8 bytes of a field that is an array of bytes, from its at-th on. */
bool plan_add_word(struct plan *plan, const struct format *format, const char *name, uint32_t at);
int64_t load_int(const unsigned char *raw, const struct slot *slot);

#endif
