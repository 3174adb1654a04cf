/* SPDX-License-Identifier: GPL-2.0-only */
/* Programs that see packets: the receive probe, TCP's first look, queueing discipline, driver. */
#ifndef NSIGHT_MONITOR_PACKETS_BPF_H
#define NSIGHT_MONITOR_PACKETS_BPF_H

#include "ports.bpf.h"
#include "sockets.bpf.h"

#define VLAN_HLEN	 4
#define TCP_OFFSET	 12 /* offset of the byte with the header's length */
#define PACKET_OUTGOING	 4  /* a clone for a tap */
#define TCP_TIME_WAIT	 6
#define TCP_NEW_SYN_RECV 12

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff___cloned {
	__u8 cloned : 1;
};

struct skb_shared_info___gso {
	unsigned short gso_size;
};

#pragma clang attribute pop

static __always_inline __u32 group_of_packet(struct core *core, const struct net_device *dev,
					     __u32 ports)
{
	if (group_by == BY_IFACE)
		return group_of_device(core, dev->ifindex, dev->nd_net.net);
	if (group_by == BY_NETNS)
		return group_of_netns(core, dev->nd_net.net);
	if (group_by == BY_PORT && ports)
		return group_of_ports(core, bpf_ntohs(ports & 0xffff), bpf_ntohs(ports >> 16));
	return group_by ? GROUP_NONE : GROUP_OTHER;
}

static __always_inline bool is_tagged(const struct sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_8021Q);
}

/* l3: after the VLAN tag, if the data has one */
static __always_inline bool is_ip(const struct sk_buff *skb, const void *l3, bool *v6)
{
	__u16 protocol = is_tagged(skb) ? load64(l3 - 2) : skb->protocol;

	*v6 = protocol == bpf_htons(ETH_P_IPV6);
	return *v6 || protocol == bpf_htons(ETH_P_IP);
}

/* Whether it holds several packets from the wire. If a socket cannot take them as one, each gets
 * its own buffer. */
static __always_inline bool is_merged(const struct sk_buff *skb)
{
	struct skb_shared_info___gso *shared = (void *)(skb->head + skb->end);

	if (has_cast)
		return ((struct skb_shared_info___gso *)CAST(shared, struct skb_shared_info___gso))
			->gso_size;
	return BPF_CORE_READ(shared, gso_size);
}

/* Whether the later removal of the tag gives it another buffer. */
static __always_inline bool moves(const struct sk_buff *skb)
{
	const struct sk_buff___cloned *as_clone = (const void *)skb;

	return is_tagged(skb) && BPF_CORE_READ_BITFIELD(as_clone, cloned);
}

/* Whether another device may get the packet from this one before IP gets it: a bond, VLAN,
 * macvlan. */
static __always_inline bool is_below(const struct net_device *dev)
{
	return dev->adj_list.upper.next != &dev->adj_list.upper;
}

static __always_inline bool has_port(void)
{
	return filtered && only_port;
}

static __always_inline bool is_other_port_of(__u32 ports)
{
	return (ports & 0xffff) != bpf_htons(only_port) && ports >> 16 != bpf_htons(only_port);
}

static __always_inline bool is_other_device(const struct net_device *dev)
{
	return filtered && ((only_ifindex && (__u32)dev->ifindex != only_ifindex) ||
			    is_other_netns(dev->nd_net.net));
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_netif_receive_skb, struct sk_buff *skb)
{
	__u64 now, received, buffer;
	const struct net_device *dev = skb->dev;
	struct core *core = this_core();
	__u32 ports = 0;
	bool v6, port, other;
	enum count kind;
	const void *l3;

	if (!core)
		return 0;
	core->merged_arrival = 0;
	buffer = buffer_of(core, AT_RECEIVE, skb);
	/* The probe fires before skb_reset_network_header(), so the IP header is at data. */
	l3 = skb->data + (is_tagged(skb) ? VLAN_HLEN : 0);
	if (!is_ip(skb, l3, &v6)) {
		forget(buffer);
		return 0;
	}
	port = BPF_CORE_READ_BITFIELD(dev, priv_flags) & IFF_BRIDGED;
	other = is_other_device(dev);
	if (!port && other && !is_below(dev)) {
		forget(buffer);
		return 0;
	}
	if (port) {
		/* It has not reached IP, and may only pass through. */
		struct packet *p = place_of(buffer);

		now = bpf_ktime_get_ns();
		received = is_known(p, buffer, PACKET_SENT) && p->time <= now &&
					   now - p->time < STALE_NS
				   ? p->time
				   : now;
		remember(buffer, PACKET_PORT, received, check_of(l3, v6), 0);
		return 0;
	}
	if (has_port()) {
		ports = ports_of(l3, v6);
		if (is_other_port_of(ports)) {
			forget(buffer);
			return 0;
		}
	} else if (group_by == BY_PORT) {
		ports = ports_of(l3, v6);
	}
	now = bpf_ktime_get_ns();
	received = receive_stamp(skb, buffer, l3, v6, now, &kind);
	if (!other)
		core->counts[kind]++; /* only this program counts these */
	if (received && (!filtered || (!other && !is_of_sockets() && !has_peer())))
		observe(core, STAGE_IP_START, group_of_packet(core, dev, ports), now - received);
	if (!received)
		received = now;
	if (moves(skb)) {
		forget(buffer);
		return 0;
	}
	remember(buffer, PACKET_RECEIVED, received, 0, !other);
	if (is_merged(skb)) {
		core->merged_on_device = !other;
		core->merged_arrival = received;
	}
	return 0;
}

/* Whether it is more than an acknowledgement. The TCP header is at data. */
static __always_inline bool has_bytes(const struct sk_buff *skb)
{
	__u8 words = load64(skb->data + TCP_OFFSET);

	return skb->len > (words >> 4) * 4u;
}

/* At the start of tcp_rcv_established(): a packet of an established connection. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(on_tcp_probe, struct sock *sk, const struct sk_buff *skb)
{
	struct core *core;
	struct packet *p;
	__u64 now, buffer, arrival;
	bool from_device;

	if (!passes(sk)) /* and it is TCP's, over IPv4 or IPv6 */
		return 0;
	core = this_core();
	if (!core)
		return 0;
	buffer = buffer_of(core, AT_TCP, skb);
	p = place_of(buffer);
	/* An acknowledgement is never handed off. If it were kept, it would be taken for the next
	 * segment of a socket that has sent FIN; this probe is not called for such segments. */
	core->tcp_sk = has_bytes(skb) ? (__u64)sk : 0;
	now = bpf_ktime_get_ns();
	/* Read once: another packet may take its place in the meantime. */
	arrival = has_arrived(core, p, buffer, now) ? p->time : 0;
	from_device = is_from_device(skb, p, arrival);
	core->tcp_arrival = from_device ? arrival : 0;
	core->tcp_ifindex = skb->skb_iif;
	/* From here on the core keeps the time; the buffer may go to another packet. */
	if (arrival)
		p->state = PACKET_NONE;
	if (!from_device)
		return 0;
	if (!wanted(STAGE_TCP_START) || is_short_queue(sk))
		return 0;
	if (!arrival) {
		count(core, COUNT_START_NO_ARRIVAL);
		return 0;
	}
	if (only_process || group_by) {
		struct waiting *w = bpf_sk_storage_get(&waiting, sk, 0, 0);

		if (only_process && (!w || !w->ours))
			return 0;
		observe(core, STAGE_TCP_START, group_of(core, sk, w, core->tcp_ifindex),
			now - arrival);
	} else {
		observe(core, STAGE_TCP_START, GROUP_OTHER, now - arrival);
	}
	return 0;
}

/* Whether the sender of a packet passes the filters. Its socket may not be a full one (a request,
 * or in TIME-WAIT); then it has only ports and namespace. */
static __always_inline bool is_sender_asked_for(const struct sk_buff *skb,
						const struct net_device *dev)
{
	struct sock *sk = skb->sk;

	if (!filtered)
		return true;
	if (only_ifindex && (__u32)dev->ifindex != only_ifindex)
		return false;
	if (!sk)
		return !only_port && !only_netns && !has_peer();
	return !is_other_port(sk) && !is_other_peer(sk) &&
	       !is_other_netns(sk->__sk_common.skc_net.net);
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(on_qdisc_enqueue, void *qdisc, void *queue, struct sk_buff *skb)
{
	struct core *core = this_core();
	__u64 buffer;

	if (!core)
		return 0;
	buffer = buffer_of(core, AT_QDISC, skb);
	if (is_of_sockets() || !is_sender_asked_for(skb, skb->dev))
		forget(buffer);
	else
		remember(buffer, PACKET_ENQUEUED, bpf_ktime_get_ns(), 0, 0);
	return 0;
}

/* A packet is dropped after a queueing discipline took it. TCP sends the same buffer again, perhaps
 * past an empty queueing discipline. */
SEC("tp_btf/kfree_skb")
int BPF_PROG(on_kfree_skb, struct sk_buff *skb)
{
	struct core *core = this_core();
	struct packet *p;
	__u64 buffer;

	/* A tap gets a clone, in the buffer of the packet that is still under way. */
	if (!core || BPF_CORE_READ_BITFIELD(skb, pkt_type) == PACKET_OUTGOING)
		return 0;
	buffer = buffer_of(core, AT_DROP, skb);
	p = place_of(buffer);
	if (!is_known(p, buffer, PACKET_ENQUEUED))
		return 0;
	p->state = PACKET_NONE;
	count(core, COUNT_QDISC_DROPPED);
	return 0;
}

/* Whether TCP set the packet's delivery time. The delivery time of a datagram is the one that its
 * program requested (SO_TXTIME). */
static __always_inline bool is_of_tcp(const struct sk_buff *skb)
{
	struct sock *sk = skb->sk;
	__u8 state;

	if (!sk)
		return false;
	state = sk->__sk_common.skc_state;
	return state == TCP_NEW_SYN_RECV || state == TCP_TIME_WAIT ||
	       sk->sk_protocol == IPPROTO_TCP;
}

/* Whether the packet goes through another device after this one, as from a bond, VLAN or bridge. It
 * passes a selected device only once. */
static __always_inline bool is_passed_on(const struct net_device *dev)
{
	return !(filtered && only_ifindex) && dev->adj_list.lower.next != &dev->adj_list.lower;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_net_dev_start_xmit, const struct sk_buff *skb, const struct net_device *dev)
{
	__u64 now, sent = skb->tstamp, buffer, enqueued;
	struct core *core = this_core();
	struct packet *p;
	bool v6, asked_for;
	__u32 ports = 0;
	const void *l3;

	if (!core)
		return 0;
	buffer = buffer_of(core, AT_DRIVER, skb);
	p = place_of(buffer);
	l3 = skb->head + skb->network_header;
	if (!is_ip(skb, l3, &v6)) {
		forget(buffer);
		return 0;
	}
	/* Processes and control groups of senders are not checked. */
	asked_for = !filtered || (!is_of_sockets() && is_sender_asked_for(skb, dev));
	if (has_port()) {
		ports = ports_of(l3, v6);
		/* The receive probe leaves it out, too. */
		if (!asked_for && is_other_port_of(ports)) {
			forget(buffer);
			return 0;
		}
	} else if (asked_for && group_by == BY_PORT) {
		ports = ports_of(l3, v6);
	}
	now = bpf_ktime_get_ns();
	if (asked_for && is_known(p, buffer, PACKET_ENQUEUED)) {
		enqueued = p->time;
		observe(core, STAGE_QDISC, group_of_packet(core, dev, ports), now - enqueued);
	}
	if (asked_for && wanted(STAGE_TCP_DRIVER) && sent && is_of_tcp(skb) &&
	    clock_of(skb) == CLOCK_OF_DELIVERY && !is_passed_on(dev)) {
		if (sent <= now && now - sent < STALE_NS)
			observe(core, STAGE_TCP_DRIVER, group_of_packet(core, dev, ports),
				now - sent);
		else
			count(core, COUNT_DELIVERY_FUTURE);
	}
	if (is_physical(dev) && !wanted(STAGE_COMPLETION)) {
		forget(buffer);
	} else {
		__u32 group = 0;

		if (asked_for && wanted(STAGE_COMPLETION))
			group = group_of_packet(core, dev, ports) + 1;
		remember(buffer, PACKET_SENT, now, check_of(l3, v6), group);
	}
	return 0;
}

/* A packet that no receive probe has seen since a driver got it: the driver has finished with
 * it. */
SEC("tp_btf/consume_skb")
int BPF_PROG(on_consume_skb, struct sk_buff *skb)
{
	struct core *core = this_core();
	struct packet *p;
	__u64 buffer;

	if (!core)
		return 0;
	buffer = buffer_of(core, AT_COMPLETION, skb);
	p = place_of(buffer);
	if (!is_known(p, buffer, PACKET_SENT) || !p->group_and_1)
		return 0;
	observe(core, STAGE_COMPLETION, p->group_and_1 - 1, bpf_ktime_get_ns() - p->time);
	p->state = PACKET_NONE;
	return 0;
}

#endif
