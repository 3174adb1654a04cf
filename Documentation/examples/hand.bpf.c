// SPDX-License-Identifier: GPL-2.0-only
/* When each UDP datagram to port 9999 passed which device: Documentation/capsule-by-hand.md. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct where {
	__u16 id; /* of the IPv4 packet: the same at every device */
	__u8 ifindex, out;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct where);
	__type(value, __u64);
} times SEC(".maps");

static __always_inline int passes(struct __sk_buff *skb, __u8 out)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u64 now = bpf_ktime_get_ns();
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct udphdr *udp = (void *)(ip + 1);
	struct where where = {.ifindex = skb->ifindex, .out = out};

	if ((void *)(udp + 1) > end || skb->protocol != bpf_htons(ETH_P_IP) ||
	    ip->protocol != IPPROTO_UDP || udp->dest != bpf_htons(9999))
		return -1;
	where.id = bpf_ntohs(ip->id);
	bpf_map_update_elem(&times, &where, &now, BPF_ANY);
	return -1; /* the packet goes on */
}

SEC("tc")
int in(struct __sk_buff *skb)
{
	return passes(skb, 0);
}

SEC("tc")
int out(struct __sk_buff *skb)
{
	return passes(skb, 1);
}

char LICENSE[] SEC("license") = "GPL";
