/* SPDX-License-Identifier: GPL-2.0-only */
/* The histograms of each core, and the groups for which they are kept. */
#ifndef NSIGHT_MONITOR_LATENCY_BPF_H
#define NSIGHT_MONITOR_LATENCY_BPF_H

#define MAY_CHANGE /* while the programs run */
#include "../../bpf/filters.bpf.h"
#include "buckets.h"

/* 1 << stage for each measured stage */
const volatile __u32 stages = ~0u;
const volatile __u32 group_by, n_groups = 1;
/* There is a filter. Checked first, since the kernel removes what a constant excludes, but not the
 * loads of constants. */
const volatile bool filtered;
const volatile char only_comm[16];
/* The other side's address, IPv4 in IPv6 form, and its mask; as loaded */
const volatile __u64 only_peer[2], peer_mask[2];
/* A process is selected, by number or name: a socket is measured once such a process reads from
 * it. */
const volatile bool only_process;
/* Cookie of only_netns, since another namespace can get its number later; 0: not known */
volatile __u64 only_netns_cookie;
/* Only sockets in which at least this many packets wait; 0: any */
const volatile __u32 only_queue;

/* Whether the kernel has bpf_rdonly_cast(). */
const volatile bool has_cast;

/* Latencies from this many ns on are reported at once; 0: not for this stage. */
const volatile __u64 trigger_ns[N_STAGES];
/* For each stage and core, at most one in this time: its window of the flight recorder covers the
 * others. */
const volatile __u64 trigger_pause_ns;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} slow_latencies SEC(".maps");

/* With --group-by; else those of a core are in its struct core. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* cores * groups; set when loaded */
	__type(key, __u32);
	__type(value, struct histograms);
} histograms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* cores; set when loaded */
	__type(key, __u32);
	__type(value, struct core);
} cores SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* groups; set when loaded */
	__type(key, struct group_key);
	__type(value, __u32);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1); /* groups; set when loaded */
	__uint(value_size, sizeof(__u32));
} free_places SEC(".maps");

/* A place found in an earlier epoch may belong to another group by now. 0: none was found */
volatile __u32 group_epoch;

static __always_inline bool wanted(enum stage stage)
{
	return stages & 1u << stage;
}

static __always_inline struct core *this_core(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cores, &cpu);
}

static __always_inline void count(struct core *core, enum count what)
{
	__sync_fetch_and_add(&core->counts[what], 1);
}

/* Eight bytes at an address in the kernel */
static __always_inline __u64 load64(const void *at)
{
	__u64 bytes = 0;

	if (has_cast)
		return *(const volatile __u64 *)CAST(at, struct timespec64___name);
	bpf_probe_read_kernel(&bytes, sizeof(bytes), at);
	return bytes;
}

static __always_inline void report_slow(struct core *core, enum stage stage, __u32 group, __u64 ns)
{
	struct slow_latency slow = {
		.ns = ns, .end = bpf_ktime_get_ns(), .stage = stage, .group = group};

	if (slow.end - core->told[stage] < trigger_pause_ns)
		count(core, COUNT_SLOW_UNTOLD);
	else if (bpf_ringbuf_output(&slow_latencies, &slow, sizeof(slow), 0))
		count(core, COUNT_SLOW_LOST);
	else
		core->told[stage] = slow.end;
}

/* Those of this core and a group */
static __always_inline struct histograms *histograms_of(struct core *core, __u32 group)
{
	__u32 at;

	if (!group_by)
		return &core->ungrouped;
	at = bpf_get_smp_processor_id() * n_groups + group;
	return bpf_map_lookup_elem(&histograms, &at);
}

/*
 * Atomic additions would cost 5 ns each and are not needed: each stage is counted by one program,
 * and the kernel does not let a program interrupt itself on a core. Reads are counted by two, of
 * which each ignores the other's system calls.
 */
static __always_inline void observe_in(struct core *core, struct histograms *all, enum stage stage,
				       __u32 group, __u64 ns)
{
	struct histogram *h;
	__u64 trigger;

	if (!wanted(stage) || !all)
		return;
	/* Another core has replaced the begin by a newer one. */
	if ((__s64)ns < 0) {
		count(core, COUNT_NEGATIVE);
		return;
	}
	h = &all->of[stage];
	h->n[bucket_of(ns)]++;
	h->sum_ns += ns;
	trigger = trigger_ns[stage];
	if (trigger && ns >= trigger)
		report_slow(core, stage, group, ns);
}

static __always_inline void observe(struct core *core, enum stage stage, __u32 group, __u64 ns)
{
	observe_in(core, histograms_of(core, group), stage, group, ns);
}

/* The place of a group; a new group gets one while there is room. */
static __always_inline __u32 group_of_key(struct core *core, const struct group_key *key)
{
	__u32 *known = bpf_map_lookup_elem(&groups, key), group;

	if (known)
		return *known;
	if (!bpf_map_pop_elem(&free_places, &group)) {
		if (!bpf_map_update_elem(&groups, key, &group, BPF_NOEXIST))
			return group;
		bpf_map_push_elem(&free_places, &group, BPF_ANY);
		known = bpf_map_lookup_elem(&groups, key); /* another core was faster */
		if (known)
			return *known;
	}
	count(core, COUNT_GROUP_OTHER);
	return GROUP_OTHER;
}

/* The lower port is the service's. */
static __always_inline __u32 group_of_ports(struct core *core, __u16 one, __u16 other)
{
	struct group_key key = {.a = one < other || !other ? one : other};

	return group_of_key(core, &key);
}

static __always_inline __u64 cookie_of(const struct net *net)
{
	return bpf_core_field_exists(net->net_cookie) ? net->net_cookie : 0;
}

static __always_inline bool is_other_netns(const struct net *net)
{
	__u64 cookie;

	if (!filtered || !only_netns)
		return false;
	cookie = cookie_of(net);
	return net->ns.inum != only_netns ||
	       (only_netns_cookie && cookie && cookie != only_netns_cookie);
}

static __always_inline __u32 group_of_netns(struct core *core, const struct net *net)
{
	struct group_key key = {.a = net->ns.inum, .b = cookie_of(net)};

	return group_of_key(core, &key);
}

static __always_inline __u32 group_of_device(struct core *core, __u32 ifindex,
					     const struct net *net)
{
	struct group_key key = {.a = (__u64)net->ns.inum << 32 | ifindex, .b = cookie_of(net)};

	return group_of_key(core, &key);
}

/* For a full socket; not BY_COMM and BY_IFACE, which the socket does not show. */
static __always_inline __u32 group_of_socket(struct core *core, struct sock *sk)
{
	if (group_by == BY_PORT) {
		__u16 remote = sk->__sk_common.skc_dport;

		return group_of_ports(core, sk->__sk_common.skc_num, bpf_ntohs(remote));
	}
	if (group_by == BY_NETNS)
		return group_of_netns(core, sk->__sk_common.skc_net.net);
	if (group_by == BY_CGROUP) {
		struct group_key key = {.a = sk->sk_cgrp_data.cgroup->kn->id};

		return group_of_key(core, &key);
	}
	return group_by ? GROUP_NONE : GROUP_OTHER;
}

static __always_inline bool has_peer(void)
{
	return filtered && (peer_mask[0] || peer_mask[1]);
}

/* Also works for a socket that is not a full one. */
static __always_inline bool is_other_peer(struct sock *sk)
{
	__u64 address[2] = {};

	if (!has_peer())
		return false;
	if (sk->__sk_common.skc_family == AF_INET6)
		bpf_probe_read_kernel(address, sizeof(address), &sk->__sk_common.skc_v6_daddr);
	else
		address[1] = (__u64)sk->__sk_common.skc_daddr << 32 | bpf_htonl(0xffff);
	return (address[0] & peer_mask[0]) != only_peer[0] ||
	       (address[1] & peer_mask[1]) != only_peer[1];
}

/* Whether a full socket of TCP or UDP passes the filters, as far as the socket shows that. */
static __always_inline bool passes(struct sock *sk)
{
	if (!filtered)
		return true;
	if (is_other_port(sk) || is_other_peer(sk))
		return false;
	if (is_other_netns(sk->__sk_common.skc_net.net))
		return false;
	return !only_cgroup || sk->sk_cgrp_data.cgroup->kn->id == only_cgroup;
}

/* For a full socket of any kind */
static __always_inline bool is_asked_for(struct sock *sk)
{
	__u16 family = sk->__sk_common.skc_family;

	return (family == AF_INET || family == AF_INET6) && has_messages(sk) && passes(sk);
}

/* Fewer packets wait in the socket than --queue requires: at a hand-off including its own, after a
 * read the remaining ones. */
static __always_inline bool is_short_queue(struct sock *sk)
{
	struct udp_sock *up = (struct udp_sock *)sk;
	__u32 n;

	if (!filtered || !only_queue)
		return false;
	n = sk->sk_receive_queue.qlen;
	if (sk->sk_protocol == IPPROTO_UDP)
		n += BPF_CORE_READ(up, reader_queue.qlen);
	return n < only_queue;
}

/* Only sockets show whether these filters match: packets without a socket, and senders, are left
 * out. */
static __always_inline bool is_of_sockets(void)
{
	return filtered && (only_process || only_cgroup || only_queue);
}

static __always_inline bool is_process_asked_for(void)
{
	char name[16];

	if (only_pid && bpf_get_current_pid_tgid() >> 32 != only_pid)
		return false;
	if (!only_comm[0])
		return true;
	if (bpf_get_current_comm(name, sizeof(name)))
		return false;
	for (int i = 0; i < 16; i++) {
		if (name[i] != only_comm[i])
			return false;
		if (!name[i])
			break;
	}
	return true;
}

#endif
