/* SPDX-License-Identifier: GPL-2.0-only */
/* What the headers of a packet say, and whether it passes the filters. */
#ifndef NSIGHT_HEADERS_BPF_H
#define NSIGHT_HEADERS_BPF_H

#include "filters.bpf.h"
#include "others.bpf.h"

const volatile bool rx = true, tx = true;

struct addresses {
	__u64 l_hi, l_lo, r_hi, r_lo; /* as loaded; IPv4: l_lo and r_lo */
};

/* Packet headers in network byte order, read at once */
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
	struct transport th;
};

struct packet6 {
	__u32 flow;
	__u16 payload_len;
	__u8 nexthdr, hop_limit;
	__u64 s_hi, s_lo, d_hi, d_lo;
	struct transport th;
};

/* The transport header. False: it does not pass the filter, or is a pure acknowledgement. */
static __always_inline bool of_transport(struct nsr_control *c, const struct transport *th,
					 __u32 length, bool received, struct nsr_message *m)
{
	__u16 source = bpf_ntohs(th->source), dest = bpf_ntohs(th->dest);

	if (only_port && source != only_port && dest != only_port) {
		if (received)
			left_out(c, m->proto, dest);
		return false;
	}
	/* What a client on this machine sends tells when the server's packet began its way. */
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
	m->seq = bpf_ntohl(th->seq);
	m->aux = th->flags;
	m->len = length - (th->doff >> 4) * 4;
	if (m->len || m->aux & TCP_SIGNS)
		return true;
	count(c, NSR_ACK);
	return false;
}

/*
 * The headers of a packet at l3. received: from the receiver's side. len: what the skb has from
 * there on, for packets whose header does not say it. False: it is none of ours, which is counted
 * where that matters.
 */
static __always_inline bool of_packet(struct nsr_control *c, const void *l3, __u16 eth, __u32 len,
				      bool received, struct nsr_message *m, struct addresses *a,
				      bool *v6)
{
	if (eth == ETH_P_IP) {
		struct packet4 p;
		__u32 header, total;

		/* Behind the headers is shared info of the skb, so 40 bytes are always there. */
		if (bpf_probe_read_kernel(&p, sizeof(p), l3))
			return false;
		m->proto = p.protocol;
		if (!is_ours(m->proto))
			return false;
		if (p.frag_off & bpf_htons(IP_OFFSET)) {
			count(c, NSR_FRAGMENT);
			return false;
		}
		header = (p.vihl & 0xf) * 4;
		if (header != 20 && bpf_probe_read_kernel(&p.th, sizeof(p.th), l3 + header))
			return false;
		total = bpf_ntohs(p.tot_len);
		a->l_lo = received ? p.daddr : p.saddr;
		a->r_lo = received ? p.saddr : p.daddr;
		*v6 = false;
		return of_transport(c, &p.th, (total ? total : len) - header, received, m);
	}
	if (eth == ETH_P_IPV6) {
		struct packet6 p;
		__u32 length;

		if (bpf_probe_read_kernel(&p, sizeof(p), l3))
			return false;
		m->proto = p.nexthdr;
		if (!is_ours(m->proto)) {
			if (m->proto != IPPROTO_ICMPV6)
				count(c, NSR_UNPARSED); /* extension headers */
			return false;
		}
		length = bpf_ntohs(p.payload_len);
		a->l_hi = received ? p.d_hi : p.s_hi;
		a->l_lo = received ? p.d_lo : p.s_lo;
		a->r_hi = received ? p.s_hi : p.d_hi;
		a->r_lo = received ? p.s_lo : p.d_lo;
		*v6 = true;
		return of_transport(c, &p.th, length ? length : len - 40, received, m);
	}
	return false;
}

/* Of TCP and UDP: 16 source port, 16 destination port, 8 protocol of IP; else 0. */
static __always_inline __u64 flow_of(const struct sk_buff *skb)
{
	const void *l3 = skb->head + skb->network_header;
	struct {
		__u16 source, dest;
	} ports;
	__u8 first, proto, header = 40;

	/* No layer has told yet where it begins. */
	if (skb->network_header == (__u16)~0 || bpf_probe_read_kernel(&first, 1, l3))
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u16 fragment;

		if (bpf_probe_read_kernel(&fragment, 2, l3 + 6) || fragment & bpf_htons(IP_OFFSET))
			return 0;
		header = (first & 0xf) * 4;
	} else if (skb->protocol != bpf_htons(ETH_P_IPV6)) {
		return 0;
	}
	if (bpf_probe_read_kernel(&proto, 1, l3 + (header == 40 && first >> 4 == 6 ? 6 : 9)))
		return 0;
	if ((proto != IPPROTO_TCP && proto != IPPROTO_UDP) ||
	    bpf_probe_read_kernel(&ports, sizeof(ports), l3 + header))
		return 0;
	return bpf_ntohs(ports.source) | (__u64)bpf_ntohs(ports.dest) << 16 | (__u64)proto << 32;
}

#endif
