/* SPDX-License-Identifier: GPL-2.0-only */
/* Datagrams: which are chosen, and the birth of their capsules. */
#ifndef NSIGHT_BIRTH_BPF_H
#define NSIGHT_BIRTH_BPF_H

#include "capsule.bpf.h"

/* IPv4's total length, IPv6's payload length, and the checksum of the former. */
static __always_inline bool set_ip_length(struct __sk_buff *skb, const struct packet *p, __u32 end)
{
	__be16 now = bpf_htons(end - p->l3), before = bpf_htons(p->end - p->l3);

	if (p->v6) {
		now = bpf_htons(end - p->l3 - sizeof(struct ipv6_header));
		return !bpf_skb_store_bytes(skb, p->l3 + offsetof(struct ipv6_header, payload_len),
					    &now, sizeof(now), 0);
	}
	if (bpf_l3_csum_replace(skb, p->l3 + offsetof(struct iphdr, check), before, now,
				sizeof(now)))
		return false;
	return !bpf_skb_store_bytes(skb, p->l3 + offsetof(struct iphdr, tot_len), &now, sizeof(now),
				    0);
}

#define CHECKSUM_PARTIAL                                                                           \
	3 /* the checksum field must still be completed over the rest of the packet */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff___summed {
	__u8 ip_summed : 2, encapsulation : 1;
	__u16 csum_start; /* offset from head */
	unsigned char *head, *data;
	unsigned long _skb_refdst;
	struct net_device___point *dev;
};

struct net___cookie {
	__u64 net_cookie;
};

struct net_device___point {
	int ifindex;
	struct {
		struct net___cookie *net;
	} nd_net;
};

struct dst_entry {
	struct net_device___point *dev;
	unsigned long _metrics, expires;
	unsigned short flags;
};

struct rtable {
	__u32 rt_pmtu : 31;
};

#pragma clang attribute pop

static __always_inline bool to_be_completed(const struct sk_buff___summed *kernel)
{
	return BPF_CORE_READ_BITFIELD_PROBED(kernel, ip_summed) == CHECKSUM_PARTIAL;
}

/*
 * Whether the kernel knows of a packet inside the datagram, for example because its checksum must
 * still be completed over all that follows. Then the datagram must not get longer.
 */
static __always_inline bool carries_another(struct __sk_buff *skb, const struct packet *p)
{
	struct sk_buff___summed *kernel = bpf_cast_to_kern_ctx(skb);

	if (BPF_CORE_READ_BITFIELD_PROBED(kernel, encapsulation))
		return true;
	return to_be_completed(kernel) &&
	       BPF_CORE_READ(kernel, csum_start) !=
		       BPF_CORE_READ(kernel, data) - BPF_CORE_READ(kernel, head) + p->l4;
}

/*
 * If the datagram's checksum is still to be completed, that will add the capsule's sum. Compensate
 * for it in advance with 28, or undo that with -28.
 */
static __always_inline bool correct_checksum(struct __sk_buff *skb, const struct packet *p,
					     __u16 by)
{
	struct sk_buff___summed *kernel = bpf_cast_to_kern_ctx(skb);
	__u32 at = p->l4 + offsetof(struct udphdr, check);
	__u16 check;

	if (!to_be_completed(kernel))
		return true;
	if (bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return false;
	check = folded((__u64)check + bpf_htons(by));
	return !bpf_skb_store_bytes(skb, at, &check, sizeof(check), 0);
}

#define DST_METADATA 0x80 /* a tunnel's metadata instead of a route */
#define METRIC_MTU   1

/* The route of a packet that is sent; NULL: it has none. The pointer's lowest bit is a flag. */
static __always_inline struct dst_entry *route_of(struct __sk_buff *skb)
{
	struct sk_buff___summed *kernel = bpf_cast_to_kern_ctx(skb);
	struct dst_entry *dst = (void *)(BPF_CORE_READ(kernel, _skb_refdst) & ~1ul);

	return dst && !(BPF_CORE_READ(dst, flags) & DST_METADATA) ? dst : NULL;
}

/* Global, so that the verifier checks it only once. */
__noinline int is_point(__u64 cookie, __u64 ifindex)
{
	__u32 zero = 0;
	const struct point_devices *devices = bpf_map_lookup_elem(&point_devices, &zero);

	if (!devices)
		return 0;
	for (int i = 0; i < NSC_POINTS / 2; i++)
		if (devices->of[i].ifindex == ifindex && devices->of[i].cookie == cookie)
			return 1;
	return 0;
}

/* The last datagram on this core that was left without a capsule at a device above another one. */
struct decided {
	__u64 packet, socket;
	__u32 point, reroutes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct decided);
} decided SEC(".maps");

/* Whether a route, which is not a VLAN's or bond's that is lost by now, leads to this device
 * itself. */
static __always_inline bool routed_here(struct __sk_buff *skb)
{
	struct sk_buff___summed *kernel = bpf_cast_to_kern_ctx(skb);
	struct dst_entry *dst = route_of(skb);

	return dst && BPF_CORE_READ(dst, dev) == BPF_CORE_READ(kernel, dev);
}

/*
 * Whether a point above this device drew, or did not draw, this datagram just now: without a queue
 * discipline of its own, a device hands the same packet down on the same core. Packets' memory is
 * used again: so each datagram that passes below ends what is known, and one that is routed here
 * passed no other device, except an ipvlan of mode l3 or l3s.
 */
static __always_inline bool decided_above(struct __sk_buff *skb, const struct nsc_config *c)
{
	__u64 packet = (__u64)bpf_cast_to_kern_ctx(skb), socket = (__u64)skb->sk;
	struct decided *last;
	__u32 zero = 0;
	bool same;

	if (!c->stacked)
		return false;
	last = bpf_map_lookup_elem(&decided, &zero);
	if (!last)
		return false;
	same = last->packet == packet && last->socket == socket && last->point != point &&
	       ((last->reroutes && !reroutes) || !routed_here(skb));
	if (!stacked) {
		last->packet = 0;
	} else if (!same) {
		last->packet = packet;
		last->socket = socket;
		last->point = point;
		last->reroutes = reroutes;
	}
	return same;
}

/* It got a capsule: that shows below. */
static __always_inline void decision_shows(void)
{
	struct decided *last;
	__u32 zero = 0;

	last = stacked ? bpf_map_lookup_elem(&decided, &zero) : NULL;
	if (last)
		last->packet = 0;
}

/*
 * The same for a device above that has a queue discipline: the datagram's route leads there, and it
 * is a point, maybe in another namespace. VLAN devices and bonds drop the route if the device below
 * would (IFF_XMIT_DST_RELEASE): not known then.
 */
static __always_inline bool drawn_above(struct __sk_buff *skb)
{
	struct sk_buff___summed *kernel = bpf_cast_to_kern_ctx(skb);
	struct dst_entry *dst = route_of(skb);
	struct net_device___point *device;
	__u64 cookie, ifindex;

	if (!dst)
		return false;
	device = BPF_CORE_READ(dst, dev);
	if (!device || device == BPF_CORE_READ(kernel, dev))
		return false;
	ifindex = BPF_CORE_READ(device, ifindex);
	cookie = BPF_CORE_READ(device, nd_net.net, net_cookie);
	return is_point(cookie, ifindex);
}

/* The MTU of the datagram's route, or of the path as routers reported it; 0: use the device's. */
static __always_inline __u32 route_mtu(struct __sk_buff *skb, bool v6)
{
	struct dst_entry *dst = route_of(skb);
	struct rtable *route = (void *)dst;
	__u32 mtu = 0, path, *metrics;

	if (!dst)
		return 0;
	/* The lowest bits of the pointer are flags. */
	metrics = (void *)(BPF_CORE_READ(dst, _metrics) & ~3ul);
	bpf_probe_read_kernel(&mtu, sizeof(mtu), metrics + METRIC_MTU);
	if (v6) /* IPv6 keeps the path's MTU in the metrics */
		return mtu;
	path = BPF_CORE_READ_BITFIELD_PROBED(route, rt_pmtu);
	if (path && (__s64)(BPF_CORE_READ(dst, expires) - bpf_jiffies64()) > 0)
		return path;
	return mtu;
}

/* Whether no known device or link on the way has a smaller MTU than that. */
static __always_inline bool fits(struct __sk_buff *skb, const struct nsc_config *c,
				 const struct packet *p, __u32 length)
{
	__u32 device = 0, route = route_mtu(skb, p->v6);

	return length <= c->most_bytes && (!route || length <= route) &&
	       !bpf_check_mtu(skb, 0, &device, NSC_BYTES, 0);
}

/* Whether the filter chooses this datagram. Only datagrams with a sending socket can be chosen. */
static __always_inline bool datagram_targeted(struct __sk_buff *skb, const struct nsc_config *c,
					      struct packet *p)
{
	if (!(c->protocols & NSC_DO_UDP) || !skb->sk)
		return false;
	parse_addresses(skb, p);
	if (!targeted(c, p->sport, p->dport, p->saddr, p->daddr))
		return false;
	return !c->cgroup || bpf_skb_ancestor_cgroup_id(skb, c->cgroup_level) == c->cgroup;
}

/* Why a chosen datagram gets no capsule; NSC_C_BORN: it gets one. */
static __always_inline enum nsc_count refusal(struct __sk_buff *skb, const struct nsc_config *c,
					      const struct packet *p)
{
	__u8 *destination = (void *)(long)skb->data;
	__be16 flags;

	if (p->fragment)
		return NSC_C_SKIP_FRAGMENT;
	if (skb->gso_segs > 1 || skb->gso_size)
		return NSC_C_SKIP_GSO;
	if (ethernet && (void *)(destination + 1) <= (void *)(long)skb->data_end &&
	    *destination & 1)
		return NSC_C_SKIP_MULTICAST;
	if (p->end != skb->len || p->l4 + p->header + p->payload != p->end)
		return NSC_C_SKIP_PADDED;
	if (carries_another(skb, p))
		return NSC_C_SKIP_TUNNEL;
	/* A later layer may have a smaller MTU, and the datagram must not be fragmented. */
	if (!fits(skb, c, p, p->end - p->l3 + NSC_BYTES))
		return NSC_C_SKIP_MTU;
	/* And no router may fragment it: in fragments no boundary finds the capsule. */
	if (!p->v6 && (bpf_skb_load_bytes(skb, p->l3 + offsetof(struct iphdr, frag_off), &flags,
					  sizeof(flags)) ||
		       !(flags & bpf_htons(IP_DF))))
		return NSC_C_SKIP_FRAGMENT;
	return NSC_C_BORN;
}

/* Put the capsule behind the datagram: the IP length grows, the UDP length stays. */
static __always_inline enum nsc_count extend(struct __sk_buff *skb, const struct packet *p,
					     struct nsc_capsule *capsule)
{
	__u32 length = skb->len;

	neutralize(capsule, wanted_sum(IPPROTO_UDP, p->payload));
	if (bpf_skb_change_tail(skb, length + NSC_BYTES, 0))
		return NSC_C_SKIP_MEMORY;
	/* If the first call succeeds, so do the others: the header is in the same memory. */
	if (bpf_skb_store_bytes(skb, length, capsule, NSC_BYTES, 0) ||
	    !set_ip_length(skb, p, p->end + NSC_BYTES) || !correct_checksum(skb, p, NSC_BYTES)) {
		bpf_skb_change_tail(skb, length, 0);
		return NSC_C_SKIP_MEMORY;
	}
	return NSC_C_BORN;
}

static __always_inline void maybe_born(struct __sk_buff *skb, const struct nsc_config *c,
				       struct packet *p)
{
	struct nsc_capsule capsule, first;
	enum nsc_count what;
	__u64 now;

	/* If the first device leads out, only the next kernel can use a capsule. */
	if (outward && !c->leave)
		return;
	/* What came in by a device, such as the other end of a veth, was chosen or not where it was
	 * sent. Some kernels keep its sender's socket all the way. */
	if (skb->ingress_ifindex)
		return;
	if (decided_above(skb, c) || !drawn(c) || !datagram_targeted(skb, c, p) || drawn_above(skb))
		return;
	now = bpf_ktime_get_ns(); /* not earlier: it takes longer than all that is above */
	if (!due(c, now))
		return;
	count(point, NSC_C_DRAWN);
	what = refusal(skb, c, p);
	if (what == NSC_C_BORN) {
		born(&capsule, now, bpf_get_prandom_u32(), false, annotation_of(p));
		first = capsule;
		if (outward)
			depart(&capsule, now);
		else
			stamp(&capsule, now);
		what = extend(skb, p, &capsule);
	}
	count(point, what);
	if (what != NSC_C_BORN)
		return;
	decision_shows();
	if (!outward)
		return;
	neutralize(&first, wanted_sum(IPPROTO_UDP, p->payload));
	count(point, record(skb, p, NSC_LEFT, now, &first, 0) ? NSC_C_LEFT : NSC_C_LEFT_LOST);
}

#endif
