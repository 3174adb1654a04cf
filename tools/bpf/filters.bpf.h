/* SPDX-License-Identifier: GPL-2.0-only */
/* Which messages the programs record, and the constants of packets and calls that they share. */
#ifndef NSIGHT_FILTERS_BPF_H
#define NSIGHT_FILTERS_BPF_H

#include <bpf/bpf_endian.h>

#include "kernel.bpf.h"

/* Which messages; 0 is any. port: of either side. */
const volatile __u16 only_port;
const volatile __u32 only_pid;
#ifndef MAY_CHANGE
#define MAY_CHANGE const
#endif
/* The numbers of a name's owner: another one may get the name. */
MAY_CHANGE volatile __u32 only_ifindex, only_netns;
MAY_CHANGE volatile __u64 only_cgroup;
/* only_port is the port of a server on this machine: messages and system calls of its local clients
 * are not recorded. */
const volatile bool of_server;

#define ETH_P_IP       0x0800
#define ETH_P_8021Q    0x8100
#define ETH_P_IPV6     0x86dd
#define IPPROTO_ICMPV6 58
#define IP_OFFSET      0x3fff /* fragment offset, and more fragments */
#define TCP_SIGNS      7      /* FIN, SYN, RST */
#define SOCK_STREAM    1
#define SOCK_DGRAM     2
#define IPPROTO_MPTCP  262
#define MSG_OOB	       1
#define MSG_PEEK       2
#define EAGAIN	       11

/* A connection that this side ended first gives its port back when the peer's FIN arrives. What
 * came before the FIN may be read later. */
static __always_inline __u16 local_port(struct sock *sk)
{
	__u16 port = sk->__sk_common.skc_num;

	if (port || sk->sk_protocol != IPPROTO_TCP)
		return port;
	/* Rare, so it need not be a cast, which Linux 6.1 lacks. */
	port = BPF_CORE_READ((struct inet_sock *)sk, inet_sport);
	return bpf_ntohs(port);
}

/* The first check of every program, and for most sockets the only one. */
static __always_inline bool is_other_port(struct sock *sk)
{
	__u16 rport;

	if (!only_port || local_port(sk) == only_port)
		return false;
	rport = sk->__sk_common.skc_dport;
	return of_server || bpf_ntohs(rport) != only_port;
}

static __always_inline bool is_ours(__u16 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* A raw socket may have the protocol of TCP or UDP, too: it gets copies. */
static __always_inline bool has_messages(const struct sock *sk)
{
	__u16 protocol = sk->sk_protocol, type = sk->sk_type;

	return (protocol == IPPROTO_TCP && type == SOCK_STREAM) ||
	       (protocol == IPPROTO_UDP && type == SOCK_DGRAM);
}

#endif
