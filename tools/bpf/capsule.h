/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The capsule: 28 bytes in a packet that hold its birth time and the last points that it passed;
 * also what the programs that fill it share with nsight-stamp and its readers. See
 * Documentation/capsule.md.
 */
#ifndef NSIGHT_CAPSULE_H
#define NSIGHT_CAPSULE_H

#include <linux/types.h>

#define NSC_BYTES  28
#define NSC_SLOTS  3
#define NSC_POINTS 32 /* numbers of points, 5 bits; 0 is the sender's socket */

/*
 * In the first slot, instead of a point: the packet came from another kernel and left it at this
 * time of that kernel's clock. Points of two kernels may have the same number, so no other slot
 * travels with a packet from one kernel to the other.
 */
#define NSC_ELSEWHERE 31
/*
 * In the third slot, instead of a point: its time is the packet's annotation, one bit for each
 * class of points. Points of other classes leave the capsule alone. Without it, all points write to
 * it.
 */
#define NSC_ANNOTATED  31
#define NSC_EVERYWHERE (~0u)
/*
 * In the second slot, instead of a point: the packet was counted as arrived, at this time, and kept
 * its capsule. It passes the devices above that one, or goes on to another address (DNAT), but is
 * not counted as arrived again.
 */
#define NSC_ARRIVED 31
/* A kind of device has two classes, in and out: bits 2 * kind and 2 * kind + 1. The kinds have the
 * order of KINDS in nsight_capsule/classes.py. */
#define NSC_KINDS 16
#define NSC_RULES 8
/* Kinds of devices that hand their packets to another device of this kernel: bridge, vlan, bond,
 * macvlan. */
#define NSC_STACKED (1 << 2 | 1 << 3 | 1 << 4 | 1 << 5)
#define NSC_MACVLAN 5

/* The number of devices that lead out of this kernel without a point: capsules end there
 * unrecorded. */
#define NSC_GUARD NSC_ELSEWHERE

/* Its first word: kind 254 (RFC 4727), length 28, "NS" (RFC 6994), in byte order of the packet. */
#define NSC_KIND    254
#define NSC_MAGIC_0 0x4e
#define NSC_MAGIC_1 0x53

/*
 * The one's-complement sum of its 16-bit words, in network byte order, never changes, so no
 * checksum of the packet changes either. In TCP the sum is that of 28 NOP bytes, which can
 * therefore overwrite the capsule. Behind a datagram it is -28, which offsets the 28 bytes by which
 * the packet is longer than the datagram: the checksum is right with the capsule (conntrack checks
 * the whole packet) and without it (sockets check the datagram). At an odd offset the sum counts
 * with its bytes swapped.
 */
#define NSC_SUM_TCP	0x0e0e
#define NSC_SUM_UDP	0xffe3
#define NSC_SUM_UDP_ODD 0xe3ff

#define NSC_AGAIN 0x8000 /* in ``points``: the segment is a retransmission */

/* All in network byte order. */
struct nsc_capsule {
	__u8 kind, length, magic[2];
	__u16 points;  /* 5 bits for each slot, the first slot lowest; 0: empty. NSC_AGAIN */
	__u16 neutral; /* keeps the sum constant */
	__u16 session; /* identifies one run of nsight-stamp */
	__u16 seq;     /* TCP: low bits of the sequence number; UDP: the datagram's number */
	__u32 birth;   /* low bits of ns; with seq it identifies the packet */
	__u32 times[NSC_SLOTS];
};

enum nsc_record_kind {
	NSC_END = 1, /* the packet reached its receiver's host stack */
	NSC_DUMP,    /* its slots were full */
	NSC_LEFT,    /* it left this kernel: the capsule was taken off by default */
	NSC_MATCH,   /* read-only mode: the packet was seen; it has no capsule */
};

#define NSC_RECORD_V6	   1
#define NSC_RECORD_INNER   2 /* in a tunnel */
#define NSC_RECORD_SEGMENT 4 /* a packet that will be split into several (GSO) */
#define NSC_RECORD_AGAIN   8

struct nsc_record {
	__u64 time; /* CLOCK_MONOTONIC, when it passed point */
	__u8 kind, point, proto, flags;
	__u16 sport, dport;	   /* host byte order */
	__u32 seq;		   /* TCP */
	__u32 length;		   /* of the payload */
	__u8 saddr[16], daddr[16]; /* IPv4: ::ffff:a.b.c.d */
	union {
		struct nsc_capsule capsule;
		struct {
			__u64 key; /* hash of the packet's fields */
		} match;
	};
	__u32 cpu;
};

#define NSC_FILE_MAGIC "NSIGHTC1"

struct nsc_file {
	char magic[8];
	__u32 record_size, session;
	__u64 started; /* CLOCK_MONOTONIC */
	__u8 reserved[40];
};

/* Counted for each point; NSC_DRAWN to NSC_BORN once for each packet chosen. */
enum nsc_count {
	NSC_C_DRAWN, /* chosen: born or skipped */
	NSC_C_BORN,
	NSC_C_SKIP_MTU,
	NSC_C_SKIP_GSO,
	NSC_C_SKIP_FRAGMENT,
	NSC_C_SKIP_MULTICAST,
	NSC_C_SKIP_PADDED, /* something is behind the datagram already */
	NSC_C_SKIP_TUNNEL, /* the datagram carries another packet, whose checksum is incomplete; or
			    * the route wraps or encrypts the segment */
	NSC_C_SKIP_MEMORY,
	NSC_C_SKIP_ROOM, /* no room in the TCP options: SACK blocks, MD5 */
	NSC_C_STAMPED,	 /* passed the point, and the capsule has a stamp for it */
	NSC_C_DUMPED,
	NSC_C_DUMP_LOST, /* the ring was full */
	NSC_C_CAME,	 /* from another kernel */
	NSC_C_ENDED,
	NSC_C_END_LOST,
	NSC_C_LEFT,
	NSC_C_LEFT_LOST,
	NSC_C_COPIES,	    /* segments that carry the capsule of another packet (TSO) */
	NSC_C_FOREIGN,	    /* of another session */
	NSC_C_FORGED,	    /* with a wrong sum, or slots that no point writes to */
	NSC_C_NOT_WRITTEN,  /* the packet's memory could not be written to */
	NSC_C_NOT_STRIPPED, /* left for the receiver's kernel, which cuts it off */
	NSC_C_TAKEN_OFF,    /* the packet left through a device that is no point */
	NSC_C_MATCHED,
	NSC_C_MATCH_LOST,
	NSC_C_UNMATCHABLE, /* fragments, which have no ports */
	NSC_C_ENDED_AGAIN, /* counted as arrived before: it was forwarded, or this device is above
			    * the one where it arrived */
	NSC_C_WENT_ON,	   /* left or taken off after it was counted as arrived */
	NSC_N_COUNTS
};

#define NSC_DO_TCP 1
#define NSC_DO_UDP 2

/* Can change while running. Addresses as in records. */

/* The annotation of chosen packets that pass this filter; the first rule that fits counts. */
struct nsc_rule {
	__u32 at;	 /* classes; NSC_EVERYWHERE: no annotation */
	__u32 port;	 /* 0 any; on either side */
	__u32 protocols; /* 0: no rule, and none after it */
	__u32 address[4], mask[4];
};

struct nsc_config {
	__u64 threshold; /* of 2^32: a packet is chosen if its random number or hash is below it */
	__u64 every_ns;	 /* minimum time between two chosen packets; 0: no minimum */
	__u64 cgroup;	 /* 0 any; else an ancestor at this level */
	__u32 cgroup_level;
	__u32 protocols;
	__u32 port;	  /* 0 any; on either side */
	__u32 points;	  /* bit n: point n writes a stamp, between birth and end */
	__u32 most_bytes; /* of an IP packet with its capsule: the smallest MTU of the points */
	__u32 address[4], mask[4];
	__u16 vxlan_port, geneve_port;
	__u8 leave;   /* do not take capsules off where packets leave this kernel */
	__u8 keep;    /* do not take capsules off at the receiver */
	__u8 stacked; /* a device of NSC_STACKED is a point */
	__u8 unused;
	struct nsc_rule rules[NSC_RULES];
};

#endif
