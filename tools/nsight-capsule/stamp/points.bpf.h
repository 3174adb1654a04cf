/* SPDX-License-Identifier: GPL-2.0-only */
/* tc programs: capsules get their stamps, and are collected. */
#ifndef NSIGHT_POINTS_BPF_H
#define NSIGHT_POINTS_BPF_H

#include "birth.bpf.h"

#define TCP_TIMESTAMPS 12 /* bytes of that option, with its padding */

/* Whether a capsule's first four bytes are at this offset, as far as it is linear. */
static __always_inline bool magic_at(struct __sk_buff *skb, __u32 at)
{
	__u32 *word = (void *)(long)skb->data + at;

	if ((void *)(word + 1) > (void *)(long)skb->data_end)
		return false;
	return *word ==
	       bpf_htonl(NSC_KIND << 24 | NSC_BYTES << 16 | NSC_MAGIC_0 << 8 | NSC_MAGIC_1);
}

/* Where the capsule of a segment is; 0 if it has none. The kernel writes options in one order. */
static __always_inline __u32 find_option(struct __sk_buff *skb, const struct packet *p)
{
	__u32 first = p->l4 + sizeof(struct tcphdr);

	if (p->header >= sizeof(struct tcphdr) + TCP_TIMESTAMPS + NSC_BYTES &&
	    magic_at(skb, first + TCP_TIMESTAMPS))
		return first + TCP_TIMESTAMPS;
	if (p->header >= sizeof(struct tcphdr) + NSC_BYTES && magic_at(skb, first))
		return first;
	return 0;
}

/* Take the capsule off: a datagram is as before, a segment has NOPs in its place. */
static __always_inline bool strip(struct __sk_buff *skb, const struct packet *p, __u32 at)
{
	__u32 blank[NSC_BYTES / 4];

	if (p->proto == IPPROTO_TCP) {
		__builtin_memset(blank, 1, sizeof(blank)); /* TCPOPT_NOP: the sum is the same */
		return !bpf_skb_store_bytes(skb, at, blank, NSC_BYTES, 0);
	}
	if (p->inner || carries_another(skb, p)) {
		/* It stays, without content: outer headers, or a checksum, have its length. */
		__builtin_memset(blank, 0, sizeof(blank));
		blank[0] = wanted_sum(IPPROTO_UDP, p->payload);
		return !bpf_skb_store_bytes(skb, at, blank, NSC_BYTES, 0);
	}
	return set_ip_length(skb, p, at) && correct_checksum(skb, p, -NSC_BYTES - 1) &&
	       !bpf_skb_change_tail(skb, at, 0);
}

static __always_inline bool arrived(const struct packet *p)
{
	struct local_address key = {.namespace_number = namespace_number};

	if (egress || p->inner || bridged)
		return false;
	__builtin_memcpy(key.address, p->daddr, sizeof(key.address));
	return bpf_map_lookup_elem(&addresses, &key);
}

/* Whether the packet comes from another kernel here: the first point in this one always stamps. */
static __always_inline bool enters(const struct nsc_capsule *capsule)
{
	return boundary && !outward && came(capsule);
}

/* Write the changed capsule back. */
static __always_inline void write_back(struct __sk_buff *skb, const struct packet *p,
				       struct nsc_capsule *capsule, __u32 at)
{
	neutralize(capsule, wanted_sum(p->proto, p->payload));
	if (bpf_skb_store_bytes(skb, at, capsule, NSC_BYTES, 0))
		count(point, NSC_C_NOT_WRITTEN);
}

/*
 * The packet is at its destination address. That can be so several times: a VLAN, a bond, a macvlan
 * or an ipvlan hands it to tc once more, at the device above, and its address may be translated
 * (DNAT). Each of these is a hop, but only the first counts as its arrival.
 */
static __always_inline void ends(struct __sk_buff *skb, const struct nsc_config *c,
				 const struct packet *p, struct nsc_capsule *capsule, __u32 at,
				 __u64 now)
{
	bool again = arrived_before(capsule), lost;

	lost = !record(skb, p, NSC_END, now, capsule, 0);
	if (again)
		count(point, lost ? NSC_C_DUMP_LOST : NSC_C_ENDED_AGAIN);
	else
		count(point, lost ? NSC_C_END_LOST : NSC_C_ENDED);
	if (p->proto == IPPROTO_UDP && !c->keep) {
		if (!strip(skb, p, at))
			count(point, NSC_C_NOT_STRIPPED);
		return;
	}
	arrive(capsule, now);
	write_back(skb, p, capsule, at);
}

/* A packet with our capsule passes. */
static __always_inline void passed(struct __sk_buff *skb, const struct nsc_config *c,
				   struct packet *p, struct nsc_capsule *capsule, __u32 at)
{
	__u64 now = bpf_ktime_get_ns();

	if (point == NSC_GUARD) {
		bool off = strip(skb, p, at);

		count(point, off ? NSC_C_TAKEN_OFF : NSC_C_NOT_STRIPPED);
		if (off && arrived_before(capsule))
			count(point, NSC_C_WENT_ON);
		return;
	}
	if (enters(capsule))
		count(point, NSC_C_CAME);
	parse_addresses(skb, p);
	/* For a segment in fragments it is unknown here whether the others arrive, and its
	 * length. */
	if (!p->fragment && arrived(p)) {
		ends(skb, c, p, capsule, at, now);
		return;
	}
	if (outward) {
		if (arrived_before(capsule))
			count(point, NSC_C_WENT_ON);
		count(point,
		      record(skb, p, NSC_LEFT, now, capsule, 0) ? NSC_C_LEFT : NSC_C_LEFT_LOST);
		if (!c->leave) {
			if (!strip(skb, p, at))
				count(point, NSC_C_NOT_STRIPPED);
			return;
		}
		depart(capsule, now);
	} else if (!(c->points >> point & 1) || !(asked(capsule) || enters(capsule))) {
		return;
	} else if (free_slot(capsule) == NSC_SLOTS) {
		count(point,
		      record(skb, p, NSC_DUMP, now, capsule, 0) ? NSC_C_DUMPED : NSC_C_DUMP_LOST);
		empty(capsule);
	} else {
		stamp(capsule, now);
		count(point, NSC_C_STAMPED);
	}
	write_back(skb, p, capsule, at);
}

/* Whether the packet asks nothing of this point: most of the cost of a stamp is saved. */
static __always_inline bool passes_by(struct __sk_buff *skb, struct packet *p,
				      const struct nsc_capsule *capsule)
{
	if (boundary || outward || point == NSC_GUARD || asked(capsule))
		return false;
	if (egress || p->inner || bridged)
		return true;
	parse_addresses(skb, p);
	return !arrived(p);
}

static __always_inline void look(struct __sk_buff *skb, const struct nsc_config *c,
				 struct packet *p, __u32 at)
{
	struct nsc_capsule capsule;

	if (bpf_skb_load_bytes(skb, at, &capsule, NSC_BYTES) || !has_magic(&capsule))
		return;
	if (capsule.session != bpf_htons(session)) {
		count(point, NSC_C_FOREIGN);
	} else if (passes_by(skb, p, &capsule)) {
		return;
	} else if (!plausible(&capsule, wanted_sum(p->proto, p->payload))) {
		count(point, NSC_C_FORGED);
	} else if (p->proto == IPPROTO_TCP && bpf_ntohs(capsule.seq) != (__u16)p->seq) {
		count(point, NSC_C_COPIES);
		/* Only the first part is the packet; but none may take a capsule out. */
		if (outward && !c->leave && !strip(skb, p, at))
			count(point, NSC_C_NOT_STRIPPED);
	} else {
		passed(skb, c, p, &capsule, at);
	}
}

SEC("tc")
int at_point(struct __sk_buff *skb)
{
	struct nsc_config *c = settings();
	struct packet p;
	__u32 at;

	if (!c)
		return GO_ON;
	parse(skb, ethernet, c->vxlan_port, &p);
	if (p.proto == IPPROTO_TCP) {
		/* Also in a first fragment: its length and the segment's checksum do not change. */
		at = find_option(skb, &p);
		if (at)
			look(skb, c, &p, at);
	} else if (p.proto == IPPROTO_UDP) {
		at = p.l4 + p.header + p.payload;
		if (p.end - at == NSC_BYTES && !p.fragment)
			look(skb, c, &p, at);
		else if (egress && !p.inner)
			maybe_born(skb, c, &p);
	}
	return GO_ON;
}

#endif
