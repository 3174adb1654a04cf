/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records of what a core did and where messages were. BPF programs write them into the ring of
 * their core, nsight-collect copies them into a file for that core, and nsight-rawdata reads them.
 * Documentation/formats.md describes the files.
 *
 * A record is 1 to 7 units of 16 bytes, little-endian. Its first word is
 *
 *   bits 0-7    type
 *   bits 8-15   0x80, and the lower 7 bits of how often the ring went round: the record is complete
 *   bits 16-63  CLOCK_MONOTONIC, ns, its lower 48 bits (78 hours); the block that holds the record
 *               says which 78 hours
 *
 * and the time is the end of what the record describes. No record crosses a page of 4 KiB of a
 * ring; what is left of a page is NSR_PAD, which no count includes.
 */
#ifndef NSIGHT_RECORD_H
#define NSIGHT_RECORD_H

#include <linux/types.h>

#define NSR_UNIT	    16
#define NSR_PAGE_UNITS	    256
#define NSR_MAX_UNITS	    7
#define NSR_TIME_BITS	    48
#define NSR_DUR_BITS	    40	  /* 18 minutes; a longer duration is recorded as this maximum */
#define NSR_TID_BITS	    22	  /* PID_MAX_LIMIT of 64-bit kernels */
#define NSR_UNTRACED	    0x200 /* in the state of a SWITCH */
#define NSR_WAKING_UNTRACED (1ull << 61)

/* clang-format off */
/*
 * Types and the words that follow the first one, lowest bits first.
 *
 * PAD             32 units to skip, with this one
 * SWITCH          22 next tid, 22 previous tid, 10 state of the previous one, NSR_UNTRACED: no tracepoint
 *                 fired, and the time is what the scheduler noted
 * SWITCH_SYSCALL  the same; 48 time when the previous one entered its system call (0: unknown,
 *                 system calls are not recorded), 16 its number; first argument
 * WAKING          22 tid that is woken, 22 tid that wakes, 16 core on which it ran last, 1: it is new,
 *                 1: no tracepoint fired; the time is what the scheduler noted, and the waker unknown
 * MIGRATE         22 tid, 16 new core, 16 old one
 * SOFTIRQ         40 ns that it took, 24 vector
 * IRQ             40 ns that it took, 24 number
 * VECTOR          40 ns that it took, 24 enum nsr_vector
 * IDLE            40 ns that it took, 24 state of cpuidle
 * SYSCALL         40 ns that it took, 22 tid; 48 first argument, 16 number; result
 * FAULT           48 address, 15 error code, 1: in user mode
 * TASK            32 tid, 32 process; name (16 bytes); 8 why (enum nsr_task), 24 unused, 32 the
 *                 parent of a new one, or the old tid (EXEC); 64 unused
 * EXIT            32 tid, 32 process
 * BLOCK           40 ns from issue to completion, 8 operation, 8 error, 8 unused; 32 bytes,
 *                 32 device; sector
 * FREQUENCY       32 kHz, 16 core
 * STEAL           48 ns that the host took, some time since the record before, 16 core; the source is
 *                 the scheduler in the file of a core, /proc/stat in that of the machine
 * DROP            16 reason, 16 protocol of Ethernet, 32 network namespace; 32 length, 16 source
 *                 port, 16 destination port; 48 lower bits of the code's address, 8 protocol of IP,
 *                 8 unused. Ports and the protocol of IP are 0 unless it is TCP or UDP
 * DROP_V4         DROP of TCP or UDP; 32 source address, 32 destination address, as loaded; 64 unused
 * DROP_V6         the same; source address, destination address (16 bytes each), as loaded
 * RETRANSMIT      16 local port, 16 remote port, 32 sequence number; socket; 32 local address,
 *                 32 remote address (of IPv6 the last four bytes)
 * OTHERS          16 port, 8 protocol, 8 unused, 32 packets: of the NET_RX softirq that ends next on
 *                 this core, received packets that the filters leave out, if they are more than
 *                 the others; the port that most of them went to (0: none had a majority)
 * READER          16 port, 8 protocol, 40 unused; name (16 bytes) of the reader of that port of
 *                 OTHERS
 * INTERVAL        40 ns that it took, 22 tid; 16 number of --interval, 22 tid that began it (0: the
 *                 same), 16 core on which that did; 40 ns from its begin to its hand-over, 23
 *                 unused, 1: it was handed over
 * QUOTA           40 ns, 22 tid: of the thread that the next switch gives the core, how long it was ready
 *                 and its control group had no CPU quota left; of the one that the next switch takes
 *                 it from, if no switch was seen that gave it
 * MEMORY          40 ns that it took, 22 tid that did it, 2 enum nsr_memory
 * COUNTERS        64 each of five: how much each performance counter of the core grew since the
 *                 record before
 * MESSAGE         struct nsr_message, with NSR_V6 the addresses, with NSR_HW a hardware timestamp; with
 *                 NSR_SHORT struct nsr_short and the addresses. Both forms are counted as one type
 */
#define NSR_TYPES(X) \
	X(PAD, 1, "pad") \
	X(SWITCH, 1, "switch") \
	X(SWITCH_SYSCALL, 2, "switch in a system call") \
	X(WAKING, 1, "wake-up") \
	X(MIGRATE, 1, "migration") \
	X(SOFTIRQ, 1, "softirq") \
	X(IRQ, 1, "interrupt") \
	X(VECTOR, 1, "system interrupt") \
	X(IDLE, 1, "idle") \
	X(SYSCALL, 2, "system call") \
	X(FAULT, 1, "page fault") \
	X(TASK, 3, "thread") \
	X(EXIT, 1, "thread's end") \
	X(BLOCK, 2, "block I/O") \
	X(FREQUENCY, 1, "frequency") \
	X(STEAL, 1, "steal time") \
	X(DROP, 2, "drop") \
	X(RETRANSMIT, 2, "retransmission") \
	X(OTHERS, 1, "packets left out") \
	X(READER, 2, "reader of packets left out") \
	X(INTERVAL, 2, "interval") \
	X(QUOTA, 1, "wait for CPU quota") \
	X(MEMORY, 1, "work for memory") \
	X(COUNTERS, 3, "performance counters") \
	X(DROP_V4, 3, "drop of IPv4") \
	X(DROP_V6, 4, "drop of IPv6")
/* clang-format on */

enum nsr_type {
	NSR_NONE,
#define X(id, units, name) NSR_##id,
	NSR_TYPES(X)
#undef X
		NSR_N_PLAIN,
	NSR_MESSAGE = 0x80, /* | enum nsr_stamp << 2 | NSR_HW | NSR_V6 | NSR_SHORT */
	NSR_V6 = 1,
	NSR_HW = 2,
	NSR_SHORT = 0x20,
	NSR_N_TYPES = NSR_MESSAGE + (7 << 2), /* without NSR_SHORT */
};

/* Timestamps of a message, in the order of the letters of events.tsv: A H R S X T O */
enum nsr_stamp {
	NSR_ARRIVAL,
	NSR_HAND_OFF,
	NSR_READ,
	NSR_SEND,
	NSR_XMIT,
	NSR_COMPLETION,
	NSR_STATE,
};

enum nsr_vector {
	NSR_LOCAL_TIMER,
	NSR_RESCHEDULE,
	NSR_CALL_FUNCTION,
	NSR_CALL_FUNCTION_SINGLE,
	NSR_N_VECTORS,
};

enum nsr_memory { NSR_RECLAIM, NSR_COMPACTION, NSR_PAGES_MOVED, NSR_N_MEMORY };

enum nsr_task { NSR_TASK_WAS_THERE, NSR_TASK_NEW, NSR_TASK_RENAMED, NSR_TASK_EXEC };

struct nsr_message {
	__u64 head;
	__u64 sk; /* kernel address of the socket; 0: unknown */
	__u32 seq;
	__u32 len;   /* READ, SEND: the result */
	__u32 laddr; /* as loaded; 0 with NSR_V6 */
	__u32 raddr;
	__u16 lport, rport; /* host order */
	__u32 netns;	    /* inode number */
	__u32 tid;	    /* the current thread */
	__s32 fd;	    /* READ, SEND: descriptor, -1: unknown; ARRIVAL, XMIT: interface */
	__u32 aux;	    /* flags of TCP or of the call; STATE: the new one; HAND_OFF: 1: the
			     * connection has not been accepted yet */
	__u8 proto;
	__u8 old_state;
	__u16 unused;
	__u64 stamp; /* ARRIVAL, XMIT: skb->tstamp; READ, SEND: when the call was entered, 0:
			unknown */
		     /*
		      * with NSR_V6: __u64 l_hi, l_lo, r_hi, r_lo, as loaded
		      * with NSR_HW: __u64 hardware timestamp, 0
		      */
};

/* The form of most messages: of TCP and UDP, to XMIT, with values that have room. */
struct nsr_short {
	__u64 head;
	__u64 sk; /* its lower 48 bits; 16 fd, signed */
	__u32 seq;
	__u32 len;
	__u32 laddr;
	__u32 raddr;
	__u16 lport, rport;
	__u32 netns;
	__u32 tid; /* 22 tid; 9 aux of ARRIVAL and XMIT; 1: UDP */
	__s32 aux; /* HAND_OFF, READ, SEND: aux; ARRIVAL, XMIT: ns since the stamp, 0: none */
};

#define NSR_SHORT_AUX_BITS 9

/* Counts of events that make no record, in the order of NSR_COUNTS. MULTIPATH: reads and sends of
 * multipath TCP sockets; files of older recorders end before it. */
enum nsr_count {
	NSR_ACK,
	NSR_PEEK,
	NSR_FRAGMENT,
	NSR_UNPARSED,
	NSR_NO_CALL,
	NSR_MULTIPATH,
	NSR_N_COUNTS
};

#define NSR_CHUNKS	     128   /* in one ring at most */
#define NSR_INTERVALS	     16	   /* kinds recorded at the same time, a power of two */
#define NSR_KEYS	     65536 /* open intervals that are paired by a key */
#define NSR_COUNTERS_AT_ONCE 5

/* The cookie of a mark: which end of which interval, and the number of the argument that is its
 * key, from 1; 0: the thread is its key. */
enum nsr_mark { NSR_MARK_BEGIN, NSR_MARK_END, NSR_MARK_HANDOVER };
#define NSR_COOKIE(number, mark, key) ((__u64)(number) << 2 | (mark) | (__u64)(key) << 8)

/* The threads whose timers are an interval: those of a process, or of a name; 0 and empty: none. */
struct nsr_timers {
	__u32 pid;
	char comm[16];
};

/*
 * The head of a ring, with the BPF programs' counts. produced and lost count records by type;
 * produced includes lost. The reader moves tail.
 *
 * A ring is large enough for the time that the reader is away. If it were used in plain round-robin
 * order, it would always be cold in the caches. So its memory is cut into chunks, and each next
 * chunk's length of units takes the first free chunk: with a reader that keeps up, only the first
 * few chunks are ever used.
 */
struct nsr_control {
	__u64 head; /* units reserved since the beginning */
	__u64 unused0[7];
	__u64 tail;		     /* units that the reader has finished with */
	__u64 free[NSR_CHUNKS / 64]; /* one bit for each free chunk */
	__u64 unused1[5];
	/* Place i is for units n * chunk length and following, where i is n modulo the number of
	 * chunks. Value: n + 1 << 8, and the chunk */
	__u64 place[NSR_CHUNKS];
	__u64 steal; /* the core's steal time at the last look */
	/* The thread that the last switch gave the core; 0: no switch was seen */
	struct {
		__u64 task; /* kernel address */
		__u64 tid;
		__u64 since;
	} running;
	/* What is under way: when it began; 0: nothing */
	__u64 softirq, irq, idle, idle_state, vector[NSR_N_VECTORS];
	/* For the flight recorder: the last packet that arrived */
	struct {
		__u64 since; /* 0: it has been handed off */
		__u32 ports; /* source, destination << 16 */
		__u32 end;   /* sequence number after it */
	} arrival;
	/* For the NET_RX softirq that is running: packets that the filters take, and packets that
	 * they leave out; the candidate for the port of most of the latter, and its lead over the
	 * other ports */
	struct {
		__u32 ours, others, lead;
		__u16 port;
		__u8 proto, unused;
		__u64 asked; /* when a reader's name was last looked up */
	} packets;
	__u64 counters[NSR_COUNTERS_AT_ONCE]; /* as last read */
	/* Begins of intervals; begins followed by another begin of the same thread or key; ends
	 * without a begin; begins without room, or marks without the argument that is their key.
	 * They are in no file: nsight-collect prints them. */
	struct {
		__u64 begun, again, alone, unpaired;
	} intervals[NSR_INTERVALS];
	__u64 produced[NSR_N_TYPES];
	__u64 lost[NSR_N_TYPES];
	__u64 counts[NSR_N_COUNTS];
};

/* A file is this, then blocks. All little-endian. */
#define NSR_MAGIC   "NSIGHTR1"
#define NSR_VERSION 2 /* 1 had no NSR_SHORT */

struct nsr_file {
	char magic[8];
	__u32 version;
	__u32 cpu; /* NSR_NO_CPU: the whole machine (threads that already existed, steal time) */
	__u64 unused[2];
};

#define NSR_NO_CPU     0xffffffffu
#define NSR_BLOCK_MARK 0x4b42534eu /* "NSBK" */

enum nsr_block_kind {
	NSR_RECORDS = 1, /* records */
	NSR_COUNTS,	 /* a struct nsr_tally for each type; then NSR_N_COUNTS times __u64 */
	NSR_END,	 /* like NSR_COUNTS, the last one: the file is complete */
};

struct nsr_block {
	__u32 mark;
	__u16 kind;
	__u16 flags;	    /* NSR_ZSTD */
	__u32 stored_bytes; /* bytes that follow */
	__u32 bytes;	    /* after decompression */
	__u64 time;	    /* CLOCK_MONOTONIC, ns, close to the records' times */
	__u64 number;	    /* number of units in the ring before the first one */
};

#define NSR_ZSTD      1
#define NSR_MAX_BLOCK (1u << 20) /* bytes after decompression */

struct nsr_tally {
	__u64 type;
	__u64 produced; /* including the lost ones */
	__u64 lost;
};

/* The chunk that has the units of number n; -1: none yet. */
static inline int nsr_chunk(__u64 place, __u64 n)
{
	return place >> 8 == n + 1 ? (int)(place & (NSR_CHUNKS - 1)) : -1;
}

/* The type as which a record is counted */
static inline __u32 nsr_counted(__u32 type)
{
	return type < NSR_MESSAGE ? type : type & ~(__u32)NSR_SHORT;
}

/* Units of a record of this type; 0: there is no such type. */
static inline __u32 nsr_units(__u32 type)
{
	switch (type) {
#define X(id, units, name)                                                                         \
	case NSR_##id:                                                                             \
		return units;
		NSR_TYPES(X)
#undef X
	}
	if (type < NSR_MESSAGE || nsr_counted(type) >= NSR_N_TYPES)
		return 0;
	if (type & NSR_SHORT)
		return type & NSR_HW ? 0 : 3 + (type & NSR_V6 ? 2 : 0);
	return 4 + (type & NSR_V6 ? 2 : 0) + (type & NSR_HW ? 1 : 0);
}

#endif
