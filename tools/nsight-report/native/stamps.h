/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A timestamp of a message: nsight-rawdata writes it to messages.bin, capture/raw_records.py reads
 * it. The 24 fields of events.tsv as numbers, 120 bytes, little-endian, no holes;
 * Documentation/formats.md describes the fields. Timestamps of one core are together, in the order
 * in which it wrote them.
 */
#ifndef NSIGHT_STAMPS_H
#define NSIGHT_STAMPS_H

#include <stdint.h>

struct nsight_stamp {
	uint64_t ts;	  /* CLOCK_MONOTONIC, ns */
	uint64_t call_ts; /* R S: when the system call was entered; 0: unknown */
	uint64_t sk;
	uint64_t laddr_hi, laddr_lo; /* as loaded; IPv4: 0, the four bytes */
	uint64_t raddr_hi, raddr_lo;
	uint64_t hwstamp, swstamp;
	int64_t aux; /* A X: interface << 8 | TCP flags */
	int32_t len; /* O: the old state */
	uint32_t seq;
	uint32_t netns;
	int32_t pid; /* -1: unknown */
	uint32_t tid;
	int32_t fd;
	uint32_t comm; /* index into strings of perf-events.json; 0: unknown */
	uint16_t cpu;
	uint16_t lport, rport;
	uint8_t kind; /* index into NSIGHT_STAMP_KINDS */
	uint8_t family;
	uint8_t proto;
	uint8_t pad[3];
};

_Static_assert(sizeof(struct nsight_stamp) == 120, "np.fromfile relies on 120 bytes");

#define NSIGHT_STAMP_KINDS "AHRSXTO"

/* An interval of a thread in intervals.bin, in the order in which its core wrote it */
struct nsight_interval {
	uint64_t start, stop; /* CLOCK_MONOTONIC, ns */
	uint64_t handover;    /* likewise; 0: none */
	int32_t pid;	      /* -1: unknown */
	uint32_t tid;	      /* thread that ended it */
	uint32_t begin_tid;   /* thread that began it; 0: the same */
	uint32_t comm;	      /* as in a stamp */
	uint16_t cpu;	      /* at its end */
	uint16_t begin_cpu;   /* if another thread began it */
	uint16_t name;	      /* number in the recorder's options */
	uint16_t unused;
};

_Static_assert(sizeof(struct nsight_interval) == 48, "np.fromfile relies on 48 bytes");

#endif
