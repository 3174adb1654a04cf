/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the programs read from the kernel's structures. Offsets are those of the running kernel
 * (CO-RE), so the build needs no vmlinux.h.
 */
#ifndef NSIGHT_KERNEL_BPF_H
#define NSIGHT_KERNEL_BPF_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* bpf_rdonly_cast() (Linux 6.2) gives an address a kernel type, so that fields are loaded directly
 * and not copied by bpf_probe_read_kernel(). A load that faults gives 0. */
extern void *bpf_rdonly_cast(const void *at, __u32 type) __ksym __weak;

#define CAST(at, structure) bpf_rdonly_cast(at, bpf_core_type_id_kernel(structure))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
};
#endif

struct pt_regs {
#if defined(__TARGET_ARCH_x86)
	unsigned long r9, r8, cx, dx, si, di;
	unsigned long orig_ax;
#elif defined(__TARGET_ARCH_arm64)
	struct user_pt_regs user_regs;
	__u64 orig_x0;
	__s32 syscallno;
#else
#error "system calls of this architecture are not known"
#endif
};

struct rq {
	__u64 prev_steal_time_rq; /* ns of steal time, as the scheduler last saw it */
	__u64 clock;
	__u64 clock_task; /* without steal time and interrupts */
};

struct cfs_rq {
	struct rq *rq;
	__u64 throttled_clock_self;	 /* when a quota took its threads off this core; 0: none
					  * did */
	__u64 throttled_clock_self_time; /* ns that it was throttled before */
};

struct task_group {
	struct cfs_rq **cfs_rq; /* by core */
};

struct sched_entity {
	unsigned char sched_delayed; /* Linux 6.12: it sleeps, and is still queued */
	struct cfs_rq *cfs_rq;
	__u64 exec_start; /* clock_task when the time that it ran was last summed up */
	__u64 sum_exec_runtime;
	__u64 prev_sum_exec_runtime; /* the sum when it was last given a core */
};

struct task_struct {
	unsigned int __state;
	int on_rq;
	struct sched_entity se;
	struct task_group *sched_task_group;
	unsigned int flags;
	int exit_state;
	int pid;
	int tgid;
	char comm[16];
	struct task_struct *group_leader;
	struct bpf_local_storage *bpf_storage;
	struct thread_info {
		__u32 cpu;
	} thread_info;
	struct sched_info {
		unsigned long pcount;		 /* how often it got a core */
		unsigned long long run_delay;	 /* ns that it was runnable and not running */
		unsigned long long last_arrival; /* the run queue's clock when it got the core */
		unsigned long long last_queued; /* the same when it became runnable; 0: it is not */
	} sched_info;
};

struct hrtimer_clock_base {
	long long offset; /* from its clock to CLOCK_MONOTONIC */
};

struct hrtimer {
	long long _softexpires; /* requested time: it may fire later by the thread's slack */
	struct hrtimer_clock_base *base;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
	__u64 net_cookie; /* unique since boot */
};

struct device {
	struct device *parent;
};

struct list_head {
	struct list_head *next;
};

struct net_device {
	struct {
		struct list_head lower; /* devices that this one sends through, as a bond does */
		struct list_head upper; /* devices that send through this one */
	} adj_list;
	int ifindex;
	unsigned int flags;
	unsigned long priv_flags : 32;
	struct device dev;
	struct {
		struct net *net;
	} nd_net;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct {
		struct net *net;
	} skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	unsigned long skc_flags; /* bits: enum sock_flags */
};

struct sk_buff_head {
	struct sk_buff *next, *prev;
	__u32 qlen;
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	struct socket *sk_socket; /* NULL: the connection has not been accepted yet */
	__u16 sk_protocol, sk_type;
	struct {
		struct cgroup *cgroup;
	} sk_cgrp_data;
};

struct inet_sock {
	__be16 inet_sport;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 write_seq;
	__u32 urg_seq; /* of the urgent byte */
};

struct sk_buff {
	struct sk_buff *next, *prev;
	struct net_device *dev;
	struct sock *sk;
	__s64 tstamp;
	int skb_iif; /* the device that IP got it from; if stacked, the uppermost one */
	unsigned int len;
	char cb[48];
	__u8 pkt_type : 3;
	__u8 tstamp_type : 2;
	__be16 protocol;
	__u16 network_header;
	__u32 end;
	unsigned char *head, *data;
};

/* Type names for CAST() only: the layout of packet headers is fixed. CO-RE ignores the suffix,
 * which keeps them apart from the types of the kernel's own headers. */
struct iphdr___name {
	__u8 protocol;
};

struct ipv6hdr___name {
	__u8 nexthdr;
};

struct tcphdr___name {
	__be16 source;
};

struct timespec64___name {
	__s64 tv_sec;
};

struct skb_shared_hwtstamps {
	__s64 hwtstamp;
};

struct skb_shared_info {
	struct skb_shared_hwtstamps hwtstamps;
	__u32 tskey;
};

struct irqaction {
	const char *name;
};

struct request_queue {
	struct gendisk *disk;
};

struct gendisk {
	int major;
	int first_minor;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	__u64 __sector;
	__u64 start_time_ns;
	__u64 io_start_time_ns;
};

#pragma clang attribute pop

enum skb_drop_reason {
	SKB_DROP_REASON_NOT_SPECIFIED = 2, /* value of the running kernel: bpf_core_enum_value() */
};

enum sock_flags {
	SOCK_DONE = 1, /* of TCP: the peer's FIN has arrived; value as above */
};

#define IPPROTO_TCP	6
#define IPPROTO_UDP	17
#define AF_INET		2
#define AF_INET6	10
#define TCP_ESTABLISHED 1
#define TCP_LISTEN	10

/* A FIN takes a sequence number. A read takes it together with the last bytes if it has arrived. */
static __always_inline bool fin_was_read(struct sock *sk, struct tcp_sock *tp)
{
	return sk->__sk_common.skc_state != TCP_ESTABLISHED && tp->copied_seq == tp->rcv_nxt &&
	       sk->__sk_common.skc_flags >> bpf_core_enum_value(enum sock_flags, SOCK_DONE) & 1;
}

#endif
