/* SPDX-License-Identifier: GPL-2.0-only */
/* The capsule itself: its checksum, birth, stamps, and the records of it. */
#ifndef NSIGHT_CAPSULE_BPF_H
#define NSIGHT_CAPSULE_BPF_H

#include "packet.bpf.h"

/* Every program of a chain returns this: TCX_NEXT. */
#define GO_ON TC_ACT_UNSPEC

/* One program is loaded for each point and direction. */
const volatile __u32 point;
const volatile __u32 namespace_number;
/* outward: packets that pass here leave this kernel. */
const volatile bool ethernet = true, egress, boundary, outward, bridged;
const volatile __u16 session;
const volatile __u32 class_bit; /* this point's class */
/* stacked: of NSC_STACKED. reroutes: macvlan and ipvlan; the latter may look up another route. */
const volatile bool stacked, reroutes;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nsc_config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NSC_POINTS *NSC_N_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22); /* set at load time */
} records SEC(".maps");

struct local_address {
	__u32 namespace_number, address[4];
};

/* Addresses in the points' namespaces: a packet for one of them has arrived. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct local_address);
	__type(value, __u8);
} addresses SEC(".maps");

/* The devices that are points: cookie of the namespace, and ifindex; 0: none of that number. */
struct point_devices {
	struct {
		__u64 cookie, ifindex;
	} of[NSC_POINTS / 2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct point_devices);
} point_devices SEC(".maps");

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

static __always_inline struct nsc_config *settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&config, &zero);
}

static __always_inline void count(__u32 at, enum nsc_count what)
{
	__u32 key = at * NSC_N_COUNTS + what;
	__u64 *n = bpf_map_lookup_elem(&counts, &key);

	if (n)
		__sync_fetch_and_add(n, 1); /* another program may interrupt this one */
}

static __always_inline bool drawn(const struct nsc_config *c)
{
	return c->threshold && bpf_get_prandom_u32() < c->threshold;
}

/* When a packet was last chosen, on any core, point or socket. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} last_chosen SEC(".maps");

/* Whether it is time to choose another packet; if so, it is this one. */
static __always_inline bool due(const struct nsc_config *c, __u64 now)
{
	__u64 last, *shared;
	__u32 zero = 0;

	if (!c->every_ns)
		return true;
	shared = bpf_map_lookup_elem(&last_chosen, &zero);
	if (!shared)
		return false;
	last = *(volatile __u64 *)shared;
	return now - last >= c->every_ns && now > last &&
	       __sync_val_compare_and_swap(shared, last, now) == last;
}

static __always_inline bool in_prefix(const __u32 *prefix, const __u32 *mask, const __u32 *address)
{
	for (int i = 0; i < 4; i++)
		if ((address[i] & mask[i]) != prefix[i])
			return false;
	return true;
}

static __always_inline bool targeted(const struct nsc_config *c, __u16 sport, __u16 dport,
				     const __u32 *saddr, const __u32 *daddr)
{
	if (c->port && sport != c->port && dport != c->port)
		return false;
	return in_prefix(c->address, c->mask, saddr) || in_prefix(c->address, c->mask, daddr);
}

/* Sender and receiver of a packet; ports in host byte order, protocol: NSC_DO_TCP or NSC_DO_UDP. */
struct ends {
	__u32 saddr[4], daddr[4], sport, dport, protocol;
};

static __always_inline bool fits_rule(const struct nsc_rule *rule, const struct ends *ends)
{
	if (!(rule->protocols & ends->protocol))
		return false;
	if (rule->port && ends->sport != rule->port && ends->dport != rule->port)
		return false;
	return in_prefix(rule->address, rule->mask, ends->saddr) ||
	       in_prefix(rule->address, rule->mask, ends->daddr);
}

/* The classes of points that stamp a packet. Global, so that the verifier checks it only once. */
__noinline __u32 annotation(struct ends *ends)
{
	const struct nsc_config *c = settings();

	if (!c || !ends)
		return NSC_EVERYWHERE;
	for (int i = 0; i < NSC_RULES && c->rules[i].protocols; i++)
		if (fits_rule(&c->rules[i], ends))
			return c->rules[i].at;
	return NSC_EVERYWHERE;
}

static __always_inline __u32 annotation_of(const struct packet *p)
{
	struct ends ends = {.sport = p->sport, .dport = p->dport};

	ends.protocol = p->proto == IPPROTO_TCP ? NSC_DO_TCP : NSC_DO_UDP;
	__builtin_memcpy(ends.saddr, p->saddr, sizeof(ends.saddr));
	__builtin_memcpy(ends.daddr, p->daddr, sizeof(ends.daddr));
	return annotation(&ends);
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* The one's-complement sum of its words as they lie in memory. */
static __always_inline __u16 sum_of(const struct nsc_capsule *capsule)
{
	const __u32 *words = (const __u32 *)capsule;
	__u64 sum = 0;

	for (int i = 0; i < NSC_BYTES / 4; i++)
		sum += words[i];
	return folded(sum);
}

/* The sum for a segment's capsule, or for one behind a datagram with that many bytes of payload. */
static __always_inline __u16 wanted_sum(__u8 proto, __u32 payload)
{
	if (proto == IPPROTO_TCP)
		return bpf_htons(NSC_SUM_TCP);
	return payload & 1 ? bpf_htons(NSC_SUM_UDP_ODD) : bpf_htons(NSC_SUM_UDP);
}

static __always_inline void neutralize(struct nsc_capsule *capsule, __u16 wanted)
{
	capsule->neutral = 0;
	capsule->neutral = folded((__u64)wanted + 0xffff - sum_of(capsule));
}

static __always_inline bool has_magic(const struct nsc_capsule *c)
{
	return c->kind == NSC_KIND && c->length == NSC_BYTES && c->magic[0] == NSC_MAGIC_0 &&
	       c->magic[1] == NSC_MAGIC_1;
}

static __always_inline bool annotated(const struct nsc_capsule *c)
{
	return (bpf_ntohs(c->points) >> 10 & 0x1f) == NSC_ANNOTATED;
}

/* Whether points of this one's class write to the capsule. */
static __always_inline bool asked(const struct nsc_capsule *c)
{
	return !annotated(c) || bpf_ntohl(c->times[2]) & class_bit;
}

/* Whether it was counted as arrived in this kernel. */
static __always_inline bool arrived_before(const struct nsc_capsule *c)
{
	return (bpf_ntohs(c->points) >> 5 & 0x1f) == NSC_ARRIVED;
}

/* Slots are filled from the first on; in empty ones number and time are 0. The second may hold the
 * arrival, the third the annotation. */
static __always_inline bool plausible(const struct nsc_capsule *c, __u16 wanted)
{
	__u32 points = bpf_ntohs(c->points);
	bool ended = false;

	if (sum_of(c) != wanted)
		return false;
	for (int i = 0; i < NSC_SLOTS; i++) {
		bool empty = !(points >> i * 5 & 0x1f);

		if (i == 1 && arrived_before(c))
			continue;
		if (i == NSC_SLOTS - 1 && annotated(c))
			break;
		if ((ended && !empty) || (empty && c->times[i]))
			return false;
		ended = empty;
	}
	return true;
}

static __always_inline void born(struct nsc_capsule *c, __u64 now, __u16 seq, bool again, __u32 at)
{
	__builtin_memset(c, 0, sizeof(*c));
	c->kind = NSC_KIND;
	c->length = NSC_BYTES;
	c->magic[0] = NSC_MAGIC_0;
	c->magic[1] = NSC_MAGIC_1;
	c->session = bpf_htons(session);
	c->seq = bpf_htons(seq);
	c->birth = bpf_htonl((__u32)now);
	c->points = again ? bpf_htons(NSC_AGAIN) : 0;
	if (at != NSC_EVERYWHERE) {
		c->points |= bpf_htons(NSC_ANNOTATED << 10);
		c->times[2] = bpf_htonl(at);
	}
}

/* The first free slot; NSC_SLOTS if there is none. */
static __always_inline __u32 free_slot(const struct nsc_capsule *c)
{
	__u32 points = bpf_ntohs(c->points);

	if (!(points & 0x1f))
		return 0;
	if (!(points & 0x1f << 5))
		return 1;
	return points & 0x1f << 10 ? NSC_SLOTS : 2;
}

/* Fill the first free slot; there must be one. */
static __always_inline void stamp(struct nsc_capsule *c, __u64 now)
{
	__u32 slot = free_slot(c);
	__u32 time = bpf_htonl((__u32)now);

	c->points |= bpf_htons(point << slot * 5);
	if (slot == 0)
		c->times[0] = time;
	else if (slot == 1)
		c->times[1] = time;
	else
		c->times[2] = time;
}

static __always_inline bool came(const struct nsc_capsule *c)
{
	return (bpf_ntohs(c->points) & 0x1f) == NSC_ELSEWHERE;
}

/* What stays when stamps are taken out: flags and the annotation. */
static __always_inline __u16 lasting(const struct nsc_capsule *c)
{
	return annotated(c) ? NSC_AGAIN | NSC_ANNOTATED << 10 : NSC_AGAIN;
}

/* Empty the slots, except those that show that the packet came from another kernel, and that it
 * has arrived. */
static __always_inline void empty(struct nsc_capsule *c)
{
	__u16 keep = lasting(c);

	if (came(c))
		keep |= 0x1f;
	else
		c->times[0] = 0;
	if (arrived_before(c))
		keep |= NSC_ARRIVED << 5;
	else
		c->times[1] = 0;
	if (!annotated(c))
		c->times[2] = 0;
	c->points &= bpf_htons(keep);
}

/* Mark it as counted. The record of the arrival has what was in the slots. */
static __always_inline void arrive(struct nsc_capsule *c, __u64 now)
{
	empty(c);
	c->points |= bpf_htons(NSC_ARRIVED << 5);
	c->times[1] = bpf_htonl((__u32)now);
}

/* Prepare it for the next kernel, which has other points and another clock. */
static __always_inline void depart(struct nsc_capsule *c, __u64 now)
{
	if (!annotated(c))
		c->times[2] = 0;
	c->points = (c->points & bpf_htons(lasting(c))) | bpf_htons(NSC_ELSEWHERE);
	c->times[0] = bpf_htonl((__u32)now);
	c->times[1] = 0;
}

/* Write a record of the packet at this point; false: the ring is full. */
static __always_inline bool record(const struct __sk_buff *skb, const struct packet *p, __u8 kind,
				   __u64 now, const struct nsc_capsule *capsule, __u64 key)
{
	struct nsc_record *r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);

	if (!r)
		return false;
	r->time = now;
	r->kind = kind;
	r->point = point;
	r->proto = p->proto;
	r->flags = (p->v6 ? NSC_RECORD_V6 : 0) | (p->inner ? NSC_RECORD_INNER : 0) |
		   (skb->gso_size ? NSC_RECORD_SEGMENT : 0);
	r->sport = p->sport;
	r->dport = p->dport;
	r->seq = p->proto == IPPROTO_TCP ? p->seq : 0;
	r->length = p->payload;
	__builtin_memcpy(r->saddr, p->saddr, sizeof(r->saddr));
	__builtin_memcpy(r->daddr, p->daddr, sizeof(r->daddr));
	__builtin_memset(&r->capsule, 0, sizeof(r->capsule));
	if (capsule)
		r->capsule = *capsule;
	else
		__builtin_memcpy(&r->capsule, &key, sizeof(key));
	r->cpu = bpf_get_smp_processor_id();
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return true;
}

#endif
