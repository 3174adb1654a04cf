// SPDX-License-Identifier: GPL-2.0-only
/* Other programs on the way of packets: XDP programs, and tc programs that redirect them. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} to SEC(".maps");

static __always_inline __u32 device(void)
{
	__u32 zero = 0, *found = bpf_map_lookup_elem(&to, &zero);

	return found ? *found : 0;
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* As Cilium does at the host's end of a container: straight into the other container. */
SEC("tc")
int to_peer(struct __sk_buff *skb)
{
	return bpf_redirect_peer(device(), 0);
}

SEC("tc")
int to_egress(struct __sk_buff *skb)
{
	return bpf_redirect(device(), 0);
}

char LICENSE[] SEC("license") = "GPL";
