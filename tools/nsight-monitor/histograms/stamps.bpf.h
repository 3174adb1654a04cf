/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a packet arrived. A program cannot write into a packet, so its times are kept in a table of
 * fixed size, by the address of the packet's buffer (the verifier allows no arithmetic on the
 * address of the packet itself). While a packet waits in a socket, no other packet has its buffer,
 * except copies of itself, so an entry under that address belongs to it.
 *
 * The address gives a set of places, and the one of them to look at first. An entry that is no
 * longer needed keeps its address: buffers are used again, and then find their place at once. If
 * all places of a set are needed, the oldest entry that does not wait in a socket is replaced,
 * then the oldest one; what is missing later is counted.
 */
#ifndef NSIGHT_MONITOR_STAMPS_BPF_H
#define NSIGHT_MONITOR_STAMPS_BPF_H

#include "latency.bpf.h"

#define PACKETS		  65536 /* a power of two */
#define PACKETS_SHIFT	  (64 - 16)
#define WAYS		  4 /* places of a set: two cache lines */
#define CLAIMED		  1 /* no buffer's address: the entry is being written */
#define NO_PLACE	  PACKETS
#define STALE_NS	  10000000000ull
#define CLOCK_OF_ARRIVALS 0 /* SKB_CLOCK_REALTIME */
#define CLOCK_OF_DELIVERY 1 /* SKB_CLOCK_MONOTONIC */
#define IFF_LOOPBACK	  (1 << 3)
#define IFF_EBRIDGE	  (1 << 1)
#define IFF_BRIDGED	  (1 << 9 | 1 << 10) /* port of a bridge, of Open vSwitch */

/* CLOCK_REALTIME minus CLOCK_MONOTONIC; the loader updates it when the clock is set. */
volatile __s64 realtime_offset;

enum packet_state {
	PACKET_NONE,	 /* the entry is not needed any more */
	PACKET_SENT,	 /* a virtual device got it; time: when */
	PACKET_ENQUEUED, /* a queueing discipline got it; time: when */
	PACKET_PORT,	 /* received by a port of a bridge; time: arrival */
	PACKET_RECEIVED, /* time: arrival */
};

struct packet {
	__u64 buffer; /* skb->head */
	__u64 time;
	union {
		__u64 check;   /* SENT, PORT: the first bytes after the IP header */
		__u64 handoff; /* RECEIVED; 0: not yet */
	};
	__u32 state;
	union {
		__u32 on_device;   /* RECEIVED: by the selected device, if one is selected */
		__u32 group_and_1; /* SENT: 0: its completion is not measured */
	};
};

static struct packet packets[PACKETS] __attribute__((aligned(WAYS * sizeof(struct packet))));

/*
 * The address of its buffer as a number. The verifier allows no arithmetic on pointers, but takes a
 * value from a map for a number. Each program has its own slot, since another program may interrupt
 * it; it never interrupts itself.
 */
static __always_inline __u64 as_number(struct core *core, enum program program, const void *pointer)
{
	volatile __u64 *number = &core->buffer[program];

	*number = (__u64)pointer;
	return *number;
}

static __always_inline __u64 buffer_of(struct core *core, enum program program,
				       const struct sk_buff *skb)
{
	return as_number(core, program, skb->head);
}

/* The place to look at first. It and the others of its set differ in the lowest bits. */
static __always_inline __u32 first_place(__u64 buffer)
{
	return (buffer * 0x9e3779b97f4a7c15ull) >> PACKETS_SHIFT & (PACKETS - 1);
}

/* The other place of its set that has the buffer; else the first one, which has not. */
static __noinline struct packet *other_place_of(__u64 buffer)
{
	__u32 first = first_place(buffer);

	for (int i = 1; i < WAYS; i++)
		if (packets[first ^ i].buffer == buffer)
			return &packets[first ^ i];
	return &packets[first];
}

/* The place that has the buffer, or one with another buffer. */
static __always_inline struct packet *place_of(__u64 buffer)
{
	struct packet *p = &packets[first_place(buffer)];

	return p->buffer == buffer ? p : other_place_of(buffer);
}

/* Whether the buffer is known, in this state. */
static __always_inline bool is_known(const struct packet *p, __u64 buffer, enum packet_state state)
{
	return p->buffer == buffer && p->state == state;
}

/* Whether the entry is of a packet that has arrived, and not of an earlier one with the same
 * buffer. */
static __always_inline bool has_arrived(struct core *core, struct packet *p, __u64 buffer,
					__u64 now)
{
	if (!is_known(p, buffer, PACKET_RECEIVED))
		return false;
	if ((__s64)(now - p->time) < (__s64)STALE_NS)
		return true;
	p->state = PACKET_NONE;
	count(core, COUNT_ARRIVAL_STALE);
	return false;
}

/* Whether the packet came in through the selected device, or one below or above it. */
static __always_inline bool is_from_device(const struct sk_buff *skb, const struct packet *p,
					   bool is_its)
{
	return !filtered || !only_ifindex || (__u32)skb->skb_iif == only_ifindex ||
	       (is_its && p->on_device);
}

static __always_inline void forget(__u64 buffer)
{
	struct packet *p = place_of(buffer);

	if (p->buffer == buffer)
		p->state = PACKET_NONE;
}

/* A datagram that waits in a socket, or was read by now */
static __always_inline bool is_handed_off(const struct packet *p)
{
	return p->state == PACKET_RECEIVED && p->handoff;
}

/*
 * A place for a buffer that has none, claimed; NO_PLACE: others were faster. Another core, or a
 * program that interrupts this one, may look for a place in the same set: only one of them gets it.
 */
static __noinline __u32 claim(__u64 buffer)
{
	__u32 first = first_place(buffer), best = first;
	__u64 age = ~0ull, found = 0;

	for (int i = 0; i < WAYS; i++) {
		const struct packet *p = &packets[first ^ i];
		__u64 has = p->buffer, order;

		if (has == CLAIMED)
			continue;
		if (p->state == PACKET_NONE) {
			best = first ^ i;
			found = has;
			age = 0;
			break;
		}
		order = p->time | (is_handed_off(p) ? 1ull << 63 : 0);
		if (order < age) {
			best = first ^ i;
			found = has;
			age = order;
		}
	}
	if (age == ~0ull ||
	    __sync_val_compare_and_swap(&packets[best].buffer, found, CLAIMED) != found)
		return NO_PLACE;
	return best;
}

static __always_inline void remember(__u64 buffer, enum packet_state state, __u64 time, __u64 check,
				     __u32 more)
{
	struct packet *p = place_of(buffer);

	if (p->buffer == buffer) {
		p->buffer = CLAIMED;
	} else {
		__u32 place = claim(buffer);

		if (place == NO_PLACE)
			return;
		p = &packets[place & (PACKETS - 1)];
	}
	barrier();
	p->time = time;
	p->check = check;
	p->state = state;
	p->on_device = more;
	barrier();
	p->buffer = buffer;
}

/* Distinguishes two packets at the same address: ports and sequence number, or length and checksum;
 * after IP options, only a part of them. */
static __always_inline __u64 check_of(const void *l3, bool v6)
{
	return load64(l3 + (v6 ? 40 : 20));
}

static __always_inline bool is_physical(const struct net_device *dev)
{
	return dev->dev.parent;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Linux 5.18 to 6.10 */
struct sk_buff___mono {
	__u8 mono_delivery_time : 1;
};

#pragma clang attribute pop

/* The clock of skb->tstamp: 0 if it is the receive time. */
static __always_inline __u32 clock_of(const struct sk_buff *skb)
{
	const struct sk_buff___mono *as_mono = (const void *)skb;

	if (bpf_core_field_exists(struct sk_buff, tstamp_type))
		return BPF_CORE_READ_BITFIELD(skb, tstamp_type);
	if (bpf_core_field_exists(struct sk_buff___mono, mono_delivery_time))
		return BPF_CORE_READ_BITFIELD(as_mono, mono_delivery_time);
	return CLOCK_OF_ARRIVALS;
}

/*
 * When the packet was received, before this probe saw it; 0: not known, and kind is the reason.
 *
 * If a virtual device passes a packet on from a sender on this machine, it was received when the
 * device got it; it is in the same buffer. Any other packet was received when the kernel
 * timestamped it, which it does while some socket requests that (--receive-stamps). A delivery time
 * is set by the sender.
 */
static __always_inline __u64 receive_stamp(const struct sk_buff *skb, __u64 buffer, const void *l3,
					   bool v6, __u64 now, enum count *kind)
{
	const struct packet *p = place_of(buffer);
	const struct net_device *dev = skb->dev;
	__u64 time;

	if (!is_physical(dev) && (is_known(p, buffer, PACKET_SENT) ||
				  (is_known(p, buffer, PACKET_PORT) &&
				   BPF_CORE_READ_BITFIELD(dev, priv_flags) & IFF_EBRIDGE))) {
		time = p->time;
		if (time <= now && now - time < STALE_NS && p->check == check_of(l3, v6)) {
			*kind = COUNT_STAMP_SENT;
			return time;
		}
	}
	time = skb->tstamp;
	if (!time) {
		*kind = COUNT_STAMP_ZERO;
		return 0;
	}
	if (clock_of(skb) != CLOCK_OF_ARRIVALS) {
		*kind = COUNT_STAMP_FOREIGN;
		return 0;
	}
	time -= realtime_offset;
	if (time > now) {
		*kind = COUNT_STAMP_FUTURE;
		return 0;
	}
	if (now - time >= STALE_NS) {
		*kind = COUNT_STAMP_STALE;
		return 0;
	}
	*kind = COUNT_STAMP_KERNEL;
	return time;
}

#endif
