/* SPDX-License-Identifier: GPL-2.0-only */
/* Headers of a packet at a tc point: Ethernet, VLAN, MPLS, IPv4, IPv6, IP in IP, VXLAN, TCP,
 * UDP. */
#ifndef NSIGHT_PACKET_BPF_H
#define NSIGHT_PACKET_BPF_H

#include "../../bpf/capsule.h"
#include "../../bpf/kernel.bpf.h"

#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

/* Not linux/ipv6.h, which has another struct in6_addr than the kernel. */
struct ipv6_header {
	__u32 word;
	__be16 payload_len;
	__u8 nexthdr, hop_limit;
	__u32 saddr[4], daddr[4];
};

struct ipv6_fragment {
	__u8 nexthdr, reserved; /* other extension headers: units of 8 bytes after the first */
	__be16 offset;
	__be32 id;
};

#define IPPROTO_IPIP	  4 /* the packet inside is IPv4 */
#define IPPROTO_IPV6	  41
#define IPV6_HOP_BY_HOP	  0
#define IPV6_ROUTING	  43
#define IPV6_FRAGMENT	  44
#define IPV6_DESTINATION  60
#define IPV6_MOST_HEADERS 4 /* as many headers are skipped at most */
#define IPV6_CUT	  0x100
#define IPV6_BYTES_SHIFT  16
#define IPV6_MOST_BYTES	  0x3fff /* more bytes than that many headers have */
#define IPV6_OFFSET	  0xfff8
#define IP_OFFSET	  0x1fff
#define IP_DF		  0x4000
#define IP_MORE		  0x2000
#define VXLAN_BYTES	  8
#define MPLS_MOST_LABELS  16
#define MPLS_LAST	  0x100
#define MPLS_BYTES_SHIFT  4
#define MPLS_MOST_BYTES	  0x7f /* more bytes than that many labels have */

struct packet {
	__u32 l3, l4, end; /* offsets in the skb; end: end of the IP packet */
	__u32 saddr[4], daddr[4];
	__u16 sport, dport;	    /* host byte order */
	__u32 seq, header, payload; /* TCP sequence number; bytes of the L4 header, and after it */
	__u8 proto;		    /* 0: not recorded */
	bool v6, inner, fragment;   /* fragment: the first one, of this or of its tunnel packet */
};

static __always_inline void v4_mapped(__u32 *to, __be32 address)
{
	to[0] = to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = address;
}

static __always_inline bool is_extension(__u8 next)
{
	return next == IPV6_HOP_BY_HOP || next == IPV6_ROUTING || next == IPV6_FRAGMENT ||
	       next == IPV6_DESTINATION;
}

/*
 * The protocol after extension headers that start there, 0 if there is none; IPV6_CUT if it is a
 * first fragment; and in the upper bits the headers' bytes. AH is not skipped: a point would break
 * AH's checksum of the packet. Global, so that the verifier checks it once and not on each path to
 * it.
 */
__noinline __u64 behind_extensions(struct __sk_buff *skb, __u32 at, __u8 next)
{
	__u32 bytes = 0, cut = 0;

	for (int i = 0; i < IPV6_MOST_HEADERS && is_extension(next); i++) {
		struct ipv6_fragment header;
		/* Each has at least 8 bytes; in a fragment header the length field is 0. */
		if (bpf_skb_load_bytes(skb, at + bytes, &header, sizeof(header)))
			return 0;
		if (next == IPV6_FRAGMENT) {
			if (header.offset & bpf_htons(IPV6_OFFSET)) /* without an L4 header */
				return 0;
			cut = IPV6_CUT;
			header.reserved = 0;
		}
		bytes += (header.reserved + 1) * 8;
		next = header.nexthdr;
	}
	return (__u64)bytes << IPV6_BYTES_SHIFT | cut | next;
}

/*
 * The version of the IP packet behind the MPLS labels that start there, and in the upper bits the
 * labels' bytes; 0: there is none. Global as above.
 */
__noinline __u32 behind_labels(struct __sk_buff *skb, __u32 at)
{
	__u32 bytes = 0;

	for (int i = 0; i < MPLS_MOST_LABELS; i++) {
		__be32 label;
		__u8 version;

		if (bpf_skb_load_bytes(skb, at + bytes, &label, sizeof(label)))
			return 0;
		bytes += sizeof(label);
		if (!(label & bpf_htonl(MPLS_LAST)))
			continue;
		if (bpf_skb_load_bytes(skb, at + bytes, &version, sizeof(version)))
			return 0;
		return bytes << MPLS_BYTES_SHIFT | version >> 4;
	}
	return 0;
}

/* Skips MPLS labels at p->l3, which no device but a route puts there; returns the EtherType. */
static __always_inline __be16 parse_labels(struct __sk_buff *skb, struct packet *p)
{
	__u32 behind = behind_labels(skb, p->l3);

	p->inner = true;
	p->l3 += behind >> MPLS_BYTES_SHIFT & MPLS_MOST_BYTES;
	switch (behind & 0xf) {
	case 4:
		return bpf_htons(ETH_P_IP);
	case 6:
		return bpf_htons(ETH_P_IPV6);
	default:
		return 0;
	}
}

/* The length that a header gives; BIG TCP has packets too long for that field, which is 0 then. */
static __always_inline __u32 length_of(struct __sk_buff *skb, __be16 field, __u32 from)
{
	if (!field && skb->gso_size)
		return skb->len - from;
	return bpf_ntohs(field);
}

/* Parses the IP header at p->l3; returns the L4 protocol, 0: the packet is skipped. */
static __always_inline __u8 parse_ip(struct __sk_buff *skb, void *data, void *end, __be16 ethertype,
				     struct packet *p)
{
	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + p->l3;
		__u16 fragment;

		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
			return 0;
		fragment = bpf_ntohs(ip->frag_off);
		p->v6 = false;
		p->fragment |= !!(fragment & (IP_OFFSET | IP_MORE));
		if (fragment & IP_OFFSET) /* without an L4 header */
			return 0;
		p->l4 = p->l3 + ip->ihl * 4;
		p->end = p->l3 + length_of(skb, ip->tot_len, p->l3);
		return ip->protocol;
	}
	if (ethertype == bpf_htons(ETH_P_IPV6)) {
		struct ipv6_header *ip = data + p->l3;
		__u64 behind;

		if ((void *)(ip + 1) > end)
			return 0;
		p->v6 = true;
		p->l4 = p->l3 + sizeof(*ip);
		p->end = p->l4 + length_of(skb, ip->payload_len, p->l4);
		if (!is_extension(ip->nexthdr))
			return ip->nexthdr;
		behind = behind_extensions(skb, p->l4, ip->nexthdr);
		p->fragment |= !!(behind & IPV6_CUT);
		p->l4 += behind >> IPV6_BYTES_SHIFT & IPV6_MOST_BYTES;
		return behind;
	}
	return 0;
}

/* Addresses of the packet at p->l3. Not a part of parse(), since few packets need them. */
static __always_inline void parse_addresses(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	__builtin_memset(p->saddr, 0, sizeof(p->saddr));
	__builtin_memset(p->daddr, 0, sizeof(p->daddr));
	if (p->v6) {
		struct ipv6_header *ip = data + p->l3;

		if ((void *)(ip + 1) > end)
			return;
		__builtin_memcpy(p->saddr, ip->saddr, sizeof(p->saddr));
		__builtin_memcpy(p->daddr, ip->daddr, sizeof(p->daddr));
	} else {
		struct iphdr *ip = data + p->l3;

		if ((void *)(ip + 1) > end)
			return;
		v4_mapped(p->saddr, ip->saddr);
		v4_mapped(p->daddr, ip->daddr);
	}
}

/* Parses Ethernet and up to two VLAN tags; returns the EtherType. */
static __always_inline __be16 parse_ethernet(void *data, void *end, struct packet *p)
{
	struct ethhdr *eth = data + p->l3;
	__be16 type;

	if ((void *)(eth + 1) > end)
		return 0;
	type = eth->h_proto;
	p->l3 += sizeof(*eth);
	for (int i = 0; i < 2; i++) {
		__be16 *tag = data + p->l3;

		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 2) > end)
			return 0;
		type = tag[1];
		p->l3 += 4;
	}
	return type;
}

/* Parses the L4 header; false if the packet is not recorded or damaged. */
static __always_inline bool parse_l4(void *data, void *end, __u8 proto, struct packet *p)
{
	if (proto == IPPROTO_TCP) {
		struct tcphdr *tcp = data + p->l4;

		if ((void *)(tcp + 1) > end || tcp->doff < 5)
			return false;
		p->sport = bpf_ntohs(tcp->source);
		p->dport = bpf_ntohs(tcp->dest);
		p->seq = bpf_ntohl(tcp->seq);
		p->header = tcp->doff * 4;
		p->payload = p->l4 + p->header < p->end ? p->end - p->l4 - p->header : 0;
	} else if (proto == IPPROTO_UDP) {
		struct udphdr *udp = data + p->l4;

		if ((void *)(udp + 1) > end)
			return false;
		p->sport = bpf_ntohs(udp->source);
		p->dport = bpf_ntohs(udp->dest);
		p->header = sizeof(*udp);
		p->payload = bpf_ntohs(udp->len);
		if (p->payload < sizeof(*udp))
			return false;
		p->payload -= sizeof(*udp);
	} else {
		return false;
	}
	p->proto = proto;
	return true;
}

/* Parses the IP packet at p->l3, or behind labels, up to its L4 header, or that of an IP packet in
 * it. */
static __always_inline bool parse_packet(struct __sk_buff *skb, void *data, void *end, __be16 type,
					 struct packet *p)
{
	__u8 proto;

	if (type == bpf_htons(ETH_P_MPLS_UC))
		type = parse_labels(skb, p);
	proto = parse_ip(skb, data, end, type, p);
	if (proto == IPPROTO_IPIP || proto == IPPROTO_IPV6) {
		/* A route may have put it there (encap), with no device that would be a boundary.
		 */
		p->inner = true;
		p->l3 = p->l4;
		type = proto == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
		proto = parse_ip(skb, data, end, type, p);
	}
	return parse_l4(data, end, proto, p);
}

/*
 * Finds the innermost TCP or UDP packet. p->proto is 0 if there is none. Only the linear part of
 * the skb is parsed: devices that split headers keep them there.
 */
static __always_inline void parse(struct __sk_buff *skb, bool ethernet, __u16 vxlan_port,
				  struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__be16 type = skb->protocol;

	p->proto = 0;
	p->inner = false;
	p->fragment = false;
	p->l3 = p->l4 = p->end = 0; /* else the verifier finds reads of unset values */
	if (ethernet)
		type = parse_ethernet(data, end, p);
	if (!parse_packet(skb, data, end, type, p) || p->proto != IPPROTO_UDP ||
	    p->dport != vxlan_port || p->inner)
		return;
	/* From here on, p is the packet in the tunnel. */
	p->proto = 0;
	p->inner = true;
	p->l3 = p->l4 + sizeof(struct udphdr) + VXLAN_BYTES;
	type = parse_ethernet(data, end, p);
	parse_packet(skb, data, end, type, p);
}

#endif
