/* SPDX-License-Identifier: GPL-2.0-only */
/* The ports of a packet that has not reached its socket. */
#ifndef NSIGHT_MONITOR_PORTS_BPF_H
#define NSIGHT_MONITOR_PORTS_BPF_H

#include "latency.bpf.h"

#define IHL		 0xf
#define FRAGMENT_OFFSET4 0x1fff
#define FRAGMENT_OFFSET6 0xfff8
#define IPV6_HLEN	 40
#define MOST_EXTENSIONS	 4

enum extension {
	EXTENSION_HOPS = 0,
	EXTENSION_ROUTING = 43,
	EXTENSION_FRAGMENT = 44,
	EXTENSION_DESTINATION = 60,
};

/* Behind the extension headers of IPv6 that hide no ports */
static __always_inline __u32 ports_behind(const void *l3, __u8 next)
{
	__u32 at = IPV6_HLEN;
	__u64 head;

	for (int i = 0; i < MOST_EXTENSIONS && !is_ours(next); i++) {
		if (next != EXTENSION_HOPS && next != EXTENSION_ROUTING &&
		    next != EXTENSION_FRAGMENT && next != EXTENSION_DESTINATION)
			return 0;
		head = load64(l3 + at);
		if (next != EXTENSION_FRAGMENT)
			at += ((head >> 8 & 0xff) + 1) * 8;
		else if (head >> 16 & bpf_htons(FRAGMENT_OFFSET6))
			return 0;
		else
			at += 8;
		next = head;
	}
	return is_ours(next) ? load64(l3 + at) : 0;
}

/* Ports behind an IP header; 0: it has none, such as each fragment but the first, or more extension
 * headers than are looked at. */
static __always_inline __u32 ports_of(const void *l3, bool v6)
{
	__u8 protocol = load64(l3 + (v6 ? 6 : 9));

	if (v6)
		return is_ours(protocol) ? load64(l3 + IPV6_HLEN) : ports_behind(l3, protocol);
	if (!is_ours(protocol) || load64(l3 + 6) & bpf_htons(FRAGMENT_OFFSET4))
		return 0;
	return load64(l3 + (load64(l3) & IHL) * 4);
}

#endif
