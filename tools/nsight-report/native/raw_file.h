/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A file in the format of tools/bpf/record.h: its blocks are read, its records checked and sorted
 * by time. A pair (a softirq, a system call) is one record there and two items here, its begin and
 * its end.
 */
#ifndef NSIGHT_RAW_FILE_H
#define NSIGHT_RAW_FILE_H

#include "../../bpf/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum raw_role {
	ROLE_AT, /* at one point in time */
	ROLE_BEGIN,
	ROLE_END,
	ROLE_GAP,  /* the last known time before records were lost; unit: index of gaps */
	ROLE_LOST, /* the first known time after that */
};

struct raw_item {
	uint64_t ts;
	uint32_t unit; /* position of its record */
	uint8_t type;  /* enum nsr_type */
	uint8_t role;
	bool placed; /* NSR_STEAL: ts is when the core was given back */
};

struct raw_gap {
	uint64_t units;
	int32_t tid; /* that ran after the gap; -1: unknown */
};

/* Content of a TASK record, and the process of an EXIT record */
struct raw_task {
	uint64_t ts;
	int32_t tid, pid;
	uint32_t name;	/* string; 0: not in the record */
	uint32_t known; /* the name, else the last one before, else the next one after */
	uint8_t why;	/* enum nsr_task */
	bool is_exit;
	char text[16];
};

struct raw_losses {
	uint64_t truncated_bytes;   /* at the end: of a block or record that is incomplete */
	uint64_t undecodable_bytes; /* of unknown content */
	uint64_t bad_files;	    /* not a file of records, or another core's file */
	uint64_t bad_blocks;	    /* with contradictory sizes or contents */
	uint64_t unknown_blocks;
	uint64_t unknown_records;     /* types that did not exist when this was written */
	uint64_t malformed;	      /* records with contradictory sizes or times */
	uint64_t misplaced;	      /* records of a core in the machine's file */
	uint64_t lost_units;	      /* units missing between blocks */
	uint64_t saturated;	      /* pairs that began too early for a record */
	uint64_t enters_missing;      /* system calls whose begin is on no known core */
	uint64_t switches_untraced;   /* without a tracepoint, as the scheduler noted them */
	uint64_t wake_ups_untraced;   /* the same */
	uint64_t steal_without_place; /* ns of steal time whose place is unknown */
};

struct raw_file {
	uint32_t cpu; /* NSR_NO_CPU: the machine */
	bool ended;   /* has NSR_END */
	unsigned char *units;
	size_t n_units, cap_units;
	struct raw_item *items; /* activity, in order of time */
	size_t n_items, cap_items;
	struct raw_item *messages; /* in file order */
	size_t n_messages, cap_messages;
	struct raw_item *intervals; /* the same */
	size_t n_intervals, cap_intervals;
	struct raw_task *tasks;
	size_t n_tasks, cap_tasks;
	struct raw_gap *gaps;
	size_t n_gaps, cap_gaps;
	uint64_t n_records;
	bool told[NSR_N_TYPES];
	uint64_t produced[NSR_N_TYPES], lost[NSR_N_TYPES], present[NSR_N_TYPES];
	uint64_t counts[NSR_N_COUNTS];
	int32_t tid;	 /* the thread that runs; -1: unknown */
	size_t next;	 /* next item, for merging files */
	uint32_t idle;	 /* string: name of the core's idle thread */
	uint64_t others; /* NSR_OTHERS record of the softirq that ends next; 0: none */

	/* used while the file is read */
	bool want_activity, want_messages, want_intervals;
	uint64_t next_number, pending_units, latest;
	bool have_number;
};

static inline const unsigned char *raw_at(const struct raw_file *file, const struct raw_item *item)
{
	return file->units + (size_t)item->unit * NSR_UNIT;
}

/*
 * Read file name in directory dir; false: it cannot be used. Rejected parts are counted. items are
 * in file order.
 */
bool raw_file_read(struct raw_file *file, int dir, const char *name, uint32_t cpu,
		   struct raw_losses *losses);

/*
 * Sort the items by time, with pairs nested where times are equal. Set tid to the thread that runs
 * at the beginning, and the tid of each gap.
 */
void raw_file_order(struct raw_file *file);

#define RAW_DUR_MASK ((1ull << NSR_DUR_BITS) - 1)
#define RAW_TID_MASK ((1u << NSR_TID_BITS) - 1)

/* Fields of a record; p: where it begins */
static inline uint64_t raw_word(const unsigned char *p, int word)
{
	uint64_t v;

	__builtin_memcpy(&v, p + 8 * word, sizeof(v));
	return v;
}

/* What identifies a socket: the lower 48 bits of its address, since short records have no more. */
static inline uint64_t raw_socket(uint64_t address)
{
	return (uint64_t)((int64_t)(address << 16) >> 16);
}

static inline int32_t raw_next_tid(const unsigned char *p)
{
	return raw_word(p, 1) & RAW_TID_MASK;
}

static inline int32_t raw_prev_tid(const unsigned char *p)
{
	return raw_word(p, 1) >> NSR_TID_BITS & RAW_TID_MASK;
}

static inline uint64_t raw_dur(const unsigned char *p)
{
	return raw_word(p, 1) & RAW_DUR_MASK;
}

static inline unsigned int raw_memory(const unsigned char *p)
{
	return raw_word(p, 1) >> (NSR_DUR_BITS + NSR_TID_BITS);
}

/* For NSR_SYSCALL, NSR_INTERVAL, NSR_MEMORY and, with its first tid, NSR_WAKING */
static inline int32_t raw_syscall_tid(const unsigned char *p)
{
	return raw_word(p, 1) >> NSR_DUR_BITS & RAW_TID_MASK;
}

#endif
