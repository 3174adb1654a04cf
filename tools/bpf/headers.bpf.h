/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads a packet's headers, and checks whether it passes the filters. */
#ifndef NSIGHT_HEADERS_BPF_H
#define NSIGHT_HEADERS_BPF_H

#include "filters.bpf.h"
#include "others.bpf.h"

const volatile bool rx = true, tx = true;

struct addresses {
	__u64 l_hi, l_lo, r_hi, r_lo; /* as loaded; IPv4: l_lo and r_lo */
};

/* Headers in network byte order, as the kernel's structures have them */
struct transport {
	__u16 source, dest;
	__u32 seq, ack_seq;
	__u8 doff, flags;
	__u8 unused[6];
};

struct packet4 {
	__u8 vihl, tos;
	__u16 tot_len, id, frag_off;
	__u8 ttl, protocol;
	__u16 check;
	__u32 saddr, daddr;
};

struct packet6 {
	__u32 flow;
	__u16 payload_len;
	__u8 nexthdr, hop_limit;
	__u64 s_hi, s_lo, d_hi, d_lo;
};

/* Eight bytes of a header, in the order of the packet's bytes from the lowest. A load that may
 * fault takes some ten instructions, whatever its size. */
static __always_inline __u64 load64(const void *at)
{
	return *(const volatile __u64 *)CAST(at, struct timespec64___name);
}

/* The transport header. False: it does not pass the filter, or is a pure acknowledgement. */
static __always_inline bool of_transport(struct nsr_control *c, const void *at, __u32 length,
					 bool received, struct nsr_message *m)
{
	__u64 first = load64(at), second;
	__u16 source = bpf_ntohs((__u16)first), dest = bpf_ntohs((__u16)(first >> 16));

	if (only_port && source != only_port && dest != only_port) {
		if (received)
			left_out(c, m->proto, dest);
		return false;
	}
	/* A packet that a local client sends shows when the server's packet began its way. */
	if (received)
		c->packets.ours++;
	if (of_server && (received ? dest != only_port : !(source == only_port ? tx : rx)))
		return false;
	m->lport = received ? dest : source;
	m->rport = received ? source : dest;
	if (m->proto == IPPROTO_UDP) {
		m->len = length - 8;
		return true;
	}
	second = load64(at + 8);
	m->seq = bpf_ntohl((__u32)(first >> 32));
	m->aux = second >> 40 & 0xff; /* flags */
	m->len = length - (second >> 36 & 0xf) * 4;
	if (m->len || m->aux & TCP_SIGNS)
		return true;
	count(c, NSR_ACK);
	return false;
}

/*
 * The headers of a packet at l3. received: seen from the receiver's side. len: the length of the
 * skb from there on, for packets whose header does not have it. False: the packet is not recorded;
 * where that matters, it is counted.
 */
static __always_inline bool of_packet(struct nsr_control *c, const void *l3, __u16 eth, __u32 len,
				      bool received, struct nsr_message *m, struct addresses *a,
				      bool *v6)
{
	if (eth == ETH_P_IP) {
		const volatile struct packet4 *p = CAST(l3, struct iphdr___name);
		__u64 first, second = load64(l3 + 8);
		__u32 saddr = second >> 32, daddr;
		__u16 header, total;

		m->proto = second >> 8;
		if (!is_ours(m->proto))
			return false;
		first = load64(l3);
		if (first >> 48 & bpf_htons(IP_OFFSET)) {
			count(c, NSR_FRAGMENT);
			return false;
		}
		header = (first & 0xf) * 4;
		total = bpf_ntohs((__u16)(first >> 16));
		daddr = p->daddr;
		a->l_lo = received ? daddr : saddr;
		a->r_lo = received ? saddr : daddr;
		*v6 = false;
		return of_transport(c, l3 + header, (total ? total : len) - header, received, m);
	}
	if (eth == ETH_P_IPV6) {
		const volatile struct packet6 *p = CAST(l3, struct ipv6hdr___name);
		__u64 first = load64(l3);
		__u16 length;

		m->proto = first >> 48;
		if (!is_ours(m->proto)) {
			if (m->proto != IPPROTO_ICMPV6)
				count(c, NSR_UNPARSED); /* extension headers */
			return false;
		}
		length = bpf_ntohs((__u16)(first >> 32));
		a->l_hi = received ? p->d_hi : p->s_hi;
		a->l_lo = received ? p->d_lo : p->s_lo;
		a->r_hi = received ? p->s_hi : p->d_hi;
		a->r_lo = received ? p->s_lo : p->d_lo;
		*v6 = true;
		return of_transport(c, l3 + 40, length ? length : len - 40, received, m);
	}
	return false;
}

#endif
