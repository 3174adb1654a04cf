/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Marks: no-operations that an emulated Intel PT recognises by their displacement. They do nothing
 * on any other machine.
 */
#ifndef PT_MARK_H
#define PT_MARK_H

#include <stdint.h>

enum pt_mark {
	PT_MARK_START = 0, /* first = number of the log */
	PT_MARK_STOP = 1,
	PT_MARK_WATCH = 2, /* first = address; before START */
	PT_MARK_UNWATCH = 3,
	PT_MARK_SENT = 16, /* first = local port << 32 | request number */
	PT_MARK_RECEIVED = 17,
	PT_MARK_BEGIN = 18, /* a disturbance; first = cause id */
	PT_MARK_END = 19,
};

/* id must be a constant: it is part of the instruction. */
#define pt_mark(id, first, second)                                                                 \
	__asm__ volatile(".byte 0x0f, 0x1f, 0x80\n\t.long 0x4e530000 + %c0"                        \
			 :                                                                         \
			 : "i"(id), "D"((uint64_t)(first)), "S"((uint64_t)(second))                \
			 : "memory")

#endif
