/* SPDX-License-Identifier: GPL-2.0-only */
/* Packets that the kernel dropped, why, and whose they were. */
#ifndef NSIGHT_DROPS_BPF_H
#define NSIGHT_DROPS_BPF_H

#include "headers.bpf.h"

/* Who sent a packet of TCP or UDP to whom. l: the source, r: the destination. */
struct flow {
	struct addresses a;
	__u16 source, dest;
	__u8 proto; /* 0: neither, or a fragment without ports */
	bool v6;
};

static __always_inline void flow_of(const struct sk_buff *skb, struct flow *f)
{
	const void *l3 = skb->head + skb->network_header;
	const volatile struct packet4 *p4 = CAST(l3, struct iphdr___name);
	const volatile struct packet6 *p6 = CAST(l3, struct ipv6hdr___name);
	const volatile struct transport *th;
	__u8 proto, header = 40;

	/* No layer has set the network header yet. */
	if (skb->network_header == (__u16)~0)
		return;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (p4->frag_off & bpf_htons(IP_OFFSET))
			return;
		header = (p4->vihl & 0xf) * 4;
		proto = p4->protocol;
		f->a.l_lo = p4->saddr;
		f->a.r_lo = p4->daddr;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		proto = p6->nexthdr;
		f->v6 = true;
		f->a.l_hi = p6->s_hi;
		f->a.l_lo = p6->s_lo;
		f->a.r_hi = p6->d_hi;
		f->a.r_lo = p6->d_lo;
	} else {
		return;
	}
	if (!is_ours(proto))
		return;
	th = CAST(l3 + header, struct tcphdr___name);
	f->source = bpf_ntohs(th->source);
	f->dest = bpf_ntohs(th->dest);
	f->proto = proto;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(on_kfree_skb, struct sk_buff *skb, void *location, int reason)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();
	struct net_device *dev = skb->dev;
	__u64 index, *record;
	struct flow f = {};
	__u32 type;

	/* Not counted as drops: packets of closed sockets, and those without a drop reason. */
	if (!c || (__u64)reason <=
			  bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_NOT_SPECIFIED))
		return 0;
	flow_of(skb, &f);
	type = !f.proto ? NSR_DROP : f.v6 ? NSR_DROP_V6 : NSR_DROP_V4;
	record = reserve(c, type, now, &index);
	if (!record)
		return 0;
	record[1] = (reason & 0xffff) | (__u64)skb->protocol << 16 |
		    (dev ? (__u64)dev->nd_net.net->ns.inum << 32 : 0);
	record[2] = skb->len | (__u64)f.source << 32 | (__u64)f.dest << 48;
	record[3] = ((__u64)location & ((1ull << 48) - 1)) | (__u64)f.proto << 48;
	if (type == NSR_DROP_V4) {
		record[4] = f.a.l_lo | f.a.r_lo << 32;
		record[5] = 0;
	} else if (type == NSR_DROP_V6) {
		record[4] = f.a.l_hi;
		record[5] = f.a.l_lo;
		record[6] = f.a.r_hi;
		record[7] = f.a.r_lo;
	}
	commit(record, index, type, now);
	return 0;
}

#endif
