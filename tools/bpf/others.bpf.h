/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Received packets that the filters leave out: they keep a core busy like any others. If a softirq
 * received more of them than of ours, one record names the port that most of them went to, and its
 * reader.
 */
#ifndef NSIGHT_OTHERS_BPF_H
#define NSIGHT_OTHERS_BPF_H

#include "ring.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);   /* port, protocol << 16, of the records so far */
	__type(value, __u64); /* when its reader was named */
} told_ports SEC(".maps");

/* After this time the name is recorded again: the flight recorder keeps only the last seconds. */
#define NAMED_NS 500000000
/* A map update takes longer than a record, so each core looks up names at most this often. */
#define ASKED_NS 1000000

static __always_inline void forget_left_out(struct nsr_control *c)
{
	c->packets.ours = c->packets.others = c->packets.lead = 0;
}

/* Boyer-Moore majority vote: the port that has the majority, if there is one; no lead at the end
 * means that there is none. */
static __always_inline void left_out(struct nsr_control *c, __u8 proto, __u16 port)
{
	c->packets.others++;
	if (!c->packets.lead) {
		c->packets.port = port;
		c->packets.proto = proto;
	}
	if (c->packets.port == port)
		c->packets.lead++;
	else
		c->packets.lead--;
}

static __always_inline void tell_left_out(struct nsr_control *c)
{
	__u32 key = c->packets.port | (__u32)c->packets.proto << 16;
	__u64 never = 0, now;

	if (c->packets.others <= c->packets.ours)
		return;
	if (!c->packets.lead)
		key = 0;
	now = bpf_ktime_get_ns();
	put1(c, NSR_OTHERS, now, key | (__u64)c->packets.others << 32);
	if (!key || now - c->packets.asked < ASKED_NS)
		return;
	c->packets.asked = now;
	bpf_map_update_elem(&told_ports, &key, &never, BPF_NOEXIST);
}

/* The current thread reads from a socket whose port the filters leave out. */
static __always_inline void name_reader(struct sock *sk)
{
	__u32 key = sk->__sk_common.skc_num | (__u32)sk->sk_protocol << 16;
	__u64 *named = bpf_map_lookup_elem(&told_ports, &key), now, name[2];
	struct nsr_control *c;

	if (!named)
		return;
	now = bpf_ktime_get_ns();
	if (*named && now - *named < NAMED_NS)
		return;
	c = control();
	if (!c || bpf_get_current_comm(name, sizeof(name)))
		return;
	*named = now;
	put2(c, NSR_READER, now, key, name[0], name[1]);
}

#endif
