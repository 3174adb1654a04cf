/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A file of tools/bpf/record.h: its blocks read, its records checked and put in order of time.
 * A pair (a softirq, a system call) is one record there and two items here, its begin and its end.
 */
#ifndef NSIGHT_RAW_FILE_H
#define NSIGHT_RAW_FILE_H

#include "../../bpf/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum raw_role {
	ROLE_AT, /* at one time */
	ROLE_BEGIN,
	ROLE_END,
	ROLE_GAP,  /* the last that is known before records were lost; unit: index of gaps */
	ROLE_LOST, /* the first that is known after it */
};

struct raw_item {
	uint64_t ts;
	uint32_t unit; /* where its record begins */
	uint8_t type;  /* enum nsr_type */
	uint8_t role;
	bool placed; /* NSR_STEAL: ts is when the core was back */
};

struct raw_gap {
	uint64_t units;
	int32_t tid; /* that ran after it; -1: unknown */
};

/* What a TASK record tells, and the process of an EXIT */
struct raw_task {
	uint64_t ts;
	int32_t tid, pid;
	uint32_t name;	/* string; 0: not told */
	uint32_t known; /* the name, else that told last before it, else next after it */
	uint8_t why;	/* enum nsr_task */
	bool is_exit;
	char text[16];
};

struct raw_losses {
	uint64_t truncated_bytes;   /* at the end, of a block or record that is cut */
	uint64_t undecodable_bytes; /* nothing tells what they are */
	uint64_t bad_files;	    /* no file of records, or that of another core */
	uint64_t bad_blocks;	    /* whose sizes or contents contradict themselves */
	uint64_t unknown_blocks;
	uint64_t unknown_records;     /* types that did not exist when this was written */
	uint64_t malformed;	      /* records whose sizes or times contradict themselves */
	uint64_t misplaced;	      /* records of a core in the file of the machine */
	uint64_t lost_units;	      /* between blocks */
	uint64_t saturated;	      /* pairs that began earlier than can be told */
	uint64_t enters_missing;      /* system calls whose begin is on no core */
	uint64_t steal_without_place; /* ns that the host took from a core, nobody knows when */
};

struct raw_file {
	uint32_t cpu; /* NSR_NO_CPU: of the machine */
	bool ended;   /* has NSR_END */
	unsigned char *units;
	size_t n_units, cap_units;
	struct raw_item *items; /* of activity, in order of time */
	size_t n_items, cap_items;
	struct raw_item *messages; /* in order of the file */
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
	size_t next;	 /* item, for those who merge files */
	uint32_t idle;	 /* string: name of the core's idle thread */
	uint64_t others; /* NSR_OTHERS of the softirq that ends next; 0: none */

	/* while it is read */
	bool want_activity, want_messages, want_intervals;
	uint64_t next_number, pending_units, latest;
	bool have_number;
};

static inline const unsigned char *raw_at(const struct raw_file *file, const struct raw_item *item)
{
	return file->units + (size_t)item->unit * NSR_UNIT;
}

/*
 * Read file name of directory dir; false: it cannot be used. What is rejected is counted. items are
 * in order of the file.
 */
bool raw_file_read(struct raw_file *file, int dir, const char *name, uint32_t cpu,
		   struct raw_losses *losses);

/*
 * Put the items in order of time and, where times are equal, so that pairs nest; set tid to the
 * thread that runs at the begin, and that of the gaps.
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

/* Of NSR_SYSCALL, NSR_INTERVAL, NSR_MEMORY and, with its first tid, NSR_WAKING */
static inline int32_t raw_syscall_tid(const unsigned char *p)
{
	return raw_word(p, 1) >> NSR_DUR_BITS & RAW_TID_MASK;
}

#endif
