/* SPDX-License-Identifier: GPL-2.0-only */
/* Which bytes of a tracepoint's samples are needed: formats are parsed once, and samples are read
 * with plain loads. */
#ifndef NSIGHT_PLANS_H
#define NSIGHT_PLANS_H

#include "events.h"
#include "format_text.h"
#include "tracepoint_events.h"

enum slot_dest { TO_TID, TO_A, TO_B, TO_C, TO_STR, TO_STR2 };
enum slot_type { SLOT_INT, SLOT_CHARS, SLOT_DATA_LOC, SLOT_REL_LOC };

/* Where a field lies, and which output field it becomes */
struct slot {
	uint32_t off, size;
	uint8_t is_signed, type, dest;
};

#define MAX_SLOTS WIDE_VALUES /* at most 6 for an event of events.h */

struct plan {
	bool wide; /* into struct nsight_wide, as wide_kind */
	enum nsight_kind kind;
	enum wide_kind wide_kind;
	uint32_t raw_min; /* bytes that all slots need together */
	uint32_t name;	  /* string that goes into c; 0: none */
	int n_slots;
	struct slot slots[MAX_SLOTS];
};

/* A plan without slots */
struct plan *plan_new(void);
/* Add the next slot: a field of the format by name. false: there is none, or it does not fit
 * dest. */
bool plan_add(struct plan *plan, const struct format *format, const char *name,
	      enum slot_dest dest);
/* Add the next slot: 8 bytes of a field that is a byte array, starting with byte at. */
bool plan_add_word(struct plan *plan, const struct format *format, const char *name, uint32_t at);
int64_t load_int(const unsigned char *raw, const struct slot *slot);

#endif
