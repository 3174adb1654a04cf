// SPDX-License-Identifier: GPL-2.0-only
#include "plans.h"

#include "util.h"

#include <string.h>

struct plan *plan_new(void)
{
	struct plan *plan = xrealloc(NULL, 1, sizeof(*plan));

	memset(plan, 0, sizeof(*plan));
	return plan;
}

static void add(struct plan *plan, const struct slot *slot)
{
	plan->slots[plan->n_slots++] = *slot;
	if (slot->off + slot->size > plan->raw_min)
		plan->raw_min = slot->off + slot->size;
}

static bool make_slot(const struct format_field *field, enum slot_dest dest, struct slot *slot)
{
	bool elsewhere = field->flags & (FIELD_DATA_LOC | FIELD_REL_LOC);
	uint32_t size = field->flags & FIELD_ARRAY ? field->element : field->size;

	*slot = (struct slot){.off = field->offset, .dest = dest};
	if (!field->size || field->offset > 65535 || field->size > 65535)
		return false;
	if (dest == TO_STR || dest == TO_STR2) {
		slot->type = field->flags & FIELD_REL_LOC    ? SLOT_REL_LOC
			     : field->flags & FIELD_DATA_LOC ? SLOT_DATA_LOC
							     : SLOT_CHARS;
		slot->size = field->size;
		return !elsewhere || slot->size == 4;
	}
	/* sys_enter: only the first of args[6] is needed */
	slot->type = SLOT_INT;
	slot->size = size;
	slot->is_signed = !!(field->flags & FIELD_SIGNED);
	return !elsewhere && (size == 1 || size == 2 || size == 4 || size == 8);
}

bool plan_add(struct plan *plan, const struct format *format, const char *name, enum slot_dest dest)
{
	struct format_field field;
	struct slot slot;

	if (!format_field(format, name, &field) || !make_slot(&field, dest, &slot))
		return false;
	add(plan, &slot);
	return true;
}

bool plan_add_word(struct plan *plan, const struct format *format, const char *name, uint32_t at)
{
	struct format_field field;

	if (!format_field(format, name, &field) || field.offset > 65535 || field.size > 65535 ||
	    at + 8 > field.size || !(field.flags & FIELD_ARRAY) || field.element != 1)
		return false;
	add(plan, &(struct slot){.off = field.offset + at, .size = 8, .type = SLOT_INT});
	return true;
}

int64_t load_int(const unsigned char *raw, const struct slot *slot)
{
	const unsigned char *p = raw + slot->off;

	switch (slot->size) {
	case 1:
		return slot->is_signed ? (int8_t)*p : *p;
	case 2:
		return slot->is_signed ? (int16_t)load16(p) : load16(p);
	case 4:
		return slot->is_signed ? (int64_t)(int32_t)load32(p) : (int64_t)load32(p);
	default:
		return (int64_t)load64(p);
	}
}
