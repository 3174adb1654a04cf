// SPDX-License-Identifier: GPL-2.0-only
/*
 * Gives each IPv4 packet that a device receives a timestamp, and lets the device IFINDEX receive it
 * again. CLOCK: of the timestamp; -1: there is none. OFFSET: its distance in ns from
 * CLOCK_MONOTONIC.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

SEC("tc")
int restamp(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(ETH_P_IP)) /* the other device would answer ARP */
		return TC_ACT_OK;
	if (CLOCK < 0)
		skb->tstamp = 0;
	else if (!CLOCK)
		skb->tstamp = bpf_ktime_get_ns() + OFFSET;
	else if (bpf_skb_set_tstamp(skb, bpf_ktime_get_ns() + OFFSET, CLOCK))
		return TC_ACT_SHOT;
	return bpf_redirect(IFINDEX, BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "GPL";
