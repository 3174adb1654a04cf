/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When UDP takes a packet. No tracepoint shows that. Function probes do; where the kernel allows
 * none, a program of the root control group does, which runs when UDP has found the packet's
 * socket.
 */
#ifndef NSIGHT_MONITOR_UDP_BPF_H
#define NSIGHT_MONITOR_UDP_BPF_H

#include "packets.bpf.h"

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* The packet's UDP header is at data: no IP options or extension headers are in between. */
static __always_inline int udp_start(struct sk_buff *skb)
{
	const struct net_device *dev = skb->dev;
	struct core *core;
	struct packet *p;
	__u64 now, buffer, arrival;
	__u32 ports = 0;

	/* The socket is not known yet. */
	if (is_of_sockets() || has_peer() || (filtered && is_other_netns(dev->nd_net.net)))
		return 0;
	if (has_port() || group_by == BY_PORT)
		ports = load64(skb->data);
	if (has_port() && is_other_port_of(ports))
		return 0;
	core = this_core();
	if (!core)
		return 0;
	buffer = buffer_of(core, AT_UDP, skb);
	p = place_of(buffer);
	now = bpf_ktime_get_ns();
	/* Read once: another packet may take its place in the meantime. */
	arrival = has_arrived(core, p, buffer, now) ? p->time : 0;
	if (!is_from_device(skb, p, arrival))
		return 0;
	if (arrival)
		observe(core, STAGE_UDP_START, group_of_packet(core, dev, ports), now - arrival);
	else
		count(core, COUNT_UDP_START_NO_ARRIVAL);
	return 0;
}

SEC("fentry/udp_rcv")
int BPF_PROG(on_udp_rcv, struct sk_buff *skb)
{
	return udp_start(skb);
}

SEC("fentry/udpv6_rcv")
int BPF_PROG(on_udpv6_rcv, struct sk_buff *skb)
{
	return udp_start(skb);
}

/*
 * Passes every packet on. Of a merged packet that the socket cannot take as one, the program sees
 * each part, in a buffer of its own.
 */
SEC("cgroup_skb/ingress")
int on_socket_ingress(struct __sk_buff *ctx)
{
	struct bpf_sock *storage = ctx->sk ? bpf_sk_fullsock(ctx->sk) : NULL;
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct sock *sk = skb->sk; /* the receiving one, while this program runs */
	struct waiting *w;
	struct core *core;
	struct packet *p;
	__u64 now, buffer, arrival;
	bool from_device;

	if (!storage || !sk || sk->sk_protocol != IPPROTO_UDP || !is_asked_for(sk))
		return 1;
	core = this_core();
	if (!core)
		return 1;
	buffer = buffer_of(core, AT_UDP, skb);
	p = place_of(buffer);
	now = bpf_ktime_get_ns();
	/* Read once: another packet may take its place in the meantime. */
	arrival = has_arrived(core, p, buffer, now) ? p->time : 0;
	from_device = is_from_device(skb, p, arrival);
	if (core->merged_arrival) {
		arrival = core->merged_arrival;
		from_device = from_device || core->merged_on_device;
	}
	if (!from_device || is_short_queue(sk))
		return 1;
	if (!arrival) {
		count(core, COUNT_UDP_START_NO_ARRIVAL);
		return 1;
	}
	w = only_process || group_by ? bpf_sk_storage_get(&waiting, storage, 0, 0) : NULL;
	if (!only_process || (w && w->ours))
		observe(core, STAGE_UDP_START, group_of(core, sk, w, skb->skb_iif), now - arrival);
	return 1;
}

#endif
