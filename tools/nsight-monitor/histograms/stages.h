/* SPDX-License-Identifier: GPL-2.0-only */
/* The stages, and what BPF programs and the loader share. */
#ifndef NSIGHT_MONITOR_STAGES_H
#define NSIGHT_MONITOR_STAGES_H

#include <linux/types.h>

/*
 * X(identifier, name, from, to, tracepoints that it needs (with "()": functions), field of the
 * kernel that it needs and its name in earlier kernels)
 *
 * "arrival" is the receive timestamp if there is one (receive_stamp() in stamps.bpf.h), else the
 * time when netif_receive_skb saw the packet.
 */
/* clang-format off */
#define STAGES(X) \
	X(IP_START, "ip-start", "receive stamp", "packet enters the network stack", \
	  "netif_receive_skb", "") \
	X(TCP_START, "tcp-start", "arrival", "TCP takes the packet", \
	  "netif_receive_skb tcp_probe", "") \
	X(UDP_START, "udp-start", "arrival", "UDP takes the packet", \
	  "netif_receive_skb udp_rcv() udpv6_rcv()", "") \
	X(TCP_ENQUEUED, "tcp-socket-enqueued", "arrival", "hand-off to the socket", \
	  "netif_receive_skb sk_data_ready tcp_probe", "") \
	X(UDP_ENQUEUED, "udp-socket-enqueued", "arrival", "hand-off to the socket", \
	  "netif_receive_skb sk_data_ready", "") \
	X(TCP_READ, "tcp-socket-read", "arrival of the oldest message that waits", "read returns", \
	  "netif_receive_skb sk_data_ready tcp_probe sock_recv_length tcp_rcv_space_adjust", "") \
	X(UDP_READ, "udp-socket-read", "arrival", "read returns", \
	  "netif_receive_skb sk_data_ready sock_recv_length", "") \
	X(HANDOFF_READ, "handoff-to-read", "hand-off to the socket", "read returns", \
	  "sk_data_ready sock_recv_length tcp_rcv_space_adjust", "") \
	X(RUN_QUEUE, "run-queue", "the reader becomes runnable", "it runs; the part between hand-off and read", \
	  "sk_data_ready sock_recv_length tcp_rcv_space_adjust", "sched_info") \
	X(HEAD_OF_LINE, "head-of-line", "a read that leaves the message behind", "its own read returns", \
	  "sk_data_ready sock_recv_length tcp_rcv_space_adjust", "") \
	X(REQUEST, "request", "arrival of a message", "the reply's send call returns", \
	  "netif_receive_skb sk_data_ready sock_recv_length tcp_rcv_space_adjust sock_send_length", "") \
	X(TCP_DRIVER, "tcp-driver", "TCP transmits a segment", "the driver gets it", \
	  "net_dev_start_xmit", "tstamp_type", "mono_delivery_time") \
	X(QDISC, "qdisc", "the queueing discipline gets the packet", "the driver gets it", \
	  "qdisc_enqueue net_dev_start_xmit kfree_skb", "") \
	X(COMPLETION, "driver-to-completion", "the driver gets the packet", "the device has sent it", \
	  "net_dev_start_xmit netif_receive_skb consume_skb", "") \
	X(ACCEPT, "accept-queue", "connection established", "accept returns it", \
	  "inet_sock_set_state sys_exit", "")

/* Measured only if named: they need a program at each packet that is freed, or at each system
 * call. */
#define STAGES_BY_NAME (1u << STAGE_COMPLETION | 1u << STAGE_ACCEPT)

/* Packets at the receive probe: which timestamp they had, or why none */
#define COUNTS(X) \
	X(STAMP_SENT, "stamp_sender_driver") /* this machine handed the packet to a virtual device */ \
	X(STAMP_KERNEL, "stamp_kernel") /* the network stack's receive timestamp */ \
	X(STAMP_ZERO, "no_stamp_zero") /* the kernel does not timestamp packets */ \
	X(STAMP_FOREIGN, "no_stamp_foreign") /* a delivery time, from the sender's clock */ \
	X(STAMP_FUTURE, "no_stamp_future") \
	X(STAMP_STALE, "no_stamp_stale") \
	X(ARRIVAL_STALE, "arrival_too_old") /* of an earlier packet in the same buffer */ \
	X(NO_ARRIVAL_TCP, "handoff_without_arrival_tcp") \
	X(NO_ARRIVAL_UDP, "handoff_without_arrival_udp") \
	X(START_NO_ARRIVAL, "tcp_start_without_arrival") \
	X(UDP_START_NO_ARRIVAL, "udp_start_without_arrival") \
	X(READ_NO_HANDOFF, "read_without_handoff") \
	X(READ_NO_ARRIVAL, "read_without_arrival") \
	X(READ_BORROWED, "read_with_later_handoff") /* too many waited: the times of an older one are lost */ \
	X(TAKEN, "taken_without_read") /* by a sockmap or similar, before a read */ \
	X(READ_NEW_THREAD, "read_by_new_thread") /* the run-queue stage knows it from now on */ \
	X(SEVERAL_SWITCHES, "read_after_several_switches") \
	X(PEEK, "peek") \
	X(QDISC_DROPPED, "dropped_in_qdisc") \
	X(DELIVERY_FUTURE, "transmit_before_its_time") /* pacing: sent before its delivery time */ \
	X(NEGATIVE, "end_before_begin") /* another core has replaced the begin by a newer message's */ \
	X(ACCEPT_UNKNOWN, "accept_without_establishment") \
	X(SLOW_UNTOLD, "slow_not_reported") /* soon after another one of its stage on that core */ \
	X(SLOW_LOST, "slow_lost") /* the loader had not read older ones yet */ \
	X(FILTER_GONE, "filter_without_target") /* intervals, counted by the loader */ \
	X(GROUP_OTHER, "group_overflow") \
	X(GROUP_ENDED, "groups_ended") /* counted by the loader */
/* clang-format on */

enum stage {
#define X(id, ...) STAGE_##id,
	STAGES(X)
#undef X
		N_STAGES
};

enum count {
#define X(id, name) COUNT_##id,
	COUNTS(X)
#undef X
		N_COUNTS
};

/*
 * Bucket b counts latencies above 2^(b-1) ns and up to 2^b ns; the first one also 0, the last one
 * everything above.
 */
#define N_BUCKETS 40

struct histogram {
	__u64 n[N_BUCKETS];
	__u64 sum_ns;
};

/* For one core and group */
struct histograms {
	struct histogram of[N_STAGES];
};

/* A latency that reached its stage's trigger */
struct slow_latency {
	__u64 ns, end; /* end: when, on the monotonic clock */
	__u32 stage, group;
};

/* Programs that look up packets */
enum program {
	AT_RECEIVE,
	AT_TCP,
	AT_UDP,
	AT_HANDOFF,
	AT_READ,
	AT_QDISC,
	AT_DROP,
	AT_DRIVER,
	AT_COMPLETION,
	AT_ESTABLISHED,
	N_PROGRAMS
};

/* State of a core. tcp_: the packet that TCP is handling; merged_: the last packet, if it holds
 * several packets from the wire */
struct core {
	__u64 buffer[N_PROGRAMS]; /* see as_number() */
	__u64 tcp_sk, tcp_arrival;
	__u64 merged_arrival; /* 0: it holds a single one */
	__u32 tcp_ifindex, merged_on_device;
	__u64 counts[N_COUNTS];
	__u64 told[N_STAGES];	     /* when a slow latency was last reported */
	struct histograms ungrouped; /* without --group-by */
};

enum group_by { BY_NONE, BY_PORT, BY_COMM, BY_CGROUP, BY_NETNS, BY_IFACE };

/* Group 0 has latencies for which no group was left, or all if nothing is grouped; group 1 those
 * without the attribute. */
#define GROUP_OTHER 0
#define GROUP_NONE  1
#define GROUP_FIRST 2

/* a: BY_PORT, BY_CGROUP, BY_NETNS; BY_IFACE: index, network namespace << 32. b: BY_NETNS, BY_IFACE:
 * the namespace's cookie. BY_COMM: both are the name */
struct group_key {
	__u64 a, b;
};

#endif
