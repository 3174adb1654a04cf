/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where each message was, when, and on which core. The timestamps are those of
 * bpftrace/nsight-record.bt, which explains each of them.
 */
#ifndef NSIGHT_MESSAGES_BPF_H
#define NSIGHT_MESSAGES_BPF_H

#include "flight.bpf.h"
#include "headers.bpf.h"
#include "message_record.bpf.h"
#include "threads.bpf.h"

/* At least one NIC timestamps the packets that it receives. */
const volatile bool hardware_stamps;

/* The connection of a socket, and whether it passes the filters */
static __always_inline bool of_socket(struct sock *sk, bool server_side, struct nsr_message *m,
				      struct addresses *a, bool *v6)
{
	__u16 lport = local_port(sk), rport = sk->__sk_common.skc_dport;

	rport = bpf_ntohs(rport);
	if (only_port && lport != only_port && (server_side || rport != only_port))
		return false;
	m->netns = sk->__sk_common.skc_net.net->ns.inum;
	if (only_netns && m->netns != only_netns)
		return false;
	if (only_cgroup && sk->sk_cgrp_data.cgroup->kn->id != only_cgroup)
		return false;
	m->sk = (__u64)sk;
	m->lport = lport;
	m->rport = rport;
	m->proto = sk->sk_protocol;
	*v6 = sk->__sk_common.skc_family == AF_INET6;
	if (*v6) {
		bpf_probe_read_kernel(&a->l_hi, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_probe_read_kernel(&a->r_hi, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		a->l_lo = sk->__sk_common.skc_rcv_saddr;
		a->r_lo = sk->__sk_common.skc_daddr;
	}
	return true;
}

/* System calls whose first argument is the descriptor of the socket to read from or to write to */
static __always_inline bool has_descriptor(__u64 number, bool reads)
{
#if defined(__TARGET_ARCH_x86)
	return reads ? number == 0 || number == 19 || number == 45 || number == 47 || number == 299
		     : number == 1 || number == 20 || number == 44 || number == 46 || number == 307;
#else
	return reads ? number == 63 || number == 65 || number == 207 || number == 212 ||
			       number == 243
		     : number == 64 || number == 66 || number == 206 || number == 211 ||
			       number == 269;
#endif
}

/* The descriptor, and when the call was entered, if the current thread's call has them. */
static __always_inline void call_of(struct nsr_control *c, struct task_struct *task, bool reads,
				    __u64 now, struct nsr_message *m)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct thread *thread = only_waits ? NULL : thread_of(task);
	__u64 number, argument;

	/* Messages reach this process: its system calls are recorded from now on. */
	if (!only_waits && !thread)
		mark_process(task);

#if defined(__TARGET_ARCH_x86)
	number = regs->orig_ax;
	argument = regs->di;
#else
	number = regs->syscallno;
	argument = regs->orig_x0;
#endif
	m->fd = -1;
	m->stamp = 0;
	if (task->flags & PF_KTHREAD || !has_descriptor(number, reads)) {
		count(c, NSR_NO_CALL);
		return;
	}
	m->fd = argument;
	if (thread && thread->entered && !syscalls_left)
		m->stamp = now - ((now - thread->entered) & ((1ull << NSR_TIME_BITS) - 1));
}

/* NULL if the socket is not TCP. */
static __always_inline struct tcp_sock *tcp_of(struct sock *sk)
{
	return sk->sk_protocol == IPPROTO_TCP ? CAST(sk, struct tcp_sock) : NULL;
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(on_sk_data_ready, struct sock *sk)
{
	struct nsr_message m = {.fd = -1};
	struct addresses a = {};
	struct nsr_control *c;
	struct tcp_sock *tp;
	__u64 now;
	bool v6;

	if (!rx || is_other_port(sk) || !has_messages(sk))
		return 0;
	now = bpf_ktime_get_ns();
	m.proto = sk->sk_protocol;
	/* A listener is woken for connections, not for messages. */
	if (m.proto == IPPROTO_TCP && sk->__sk_common.skc_state == TCP_LISTEN)
		return 0;
	c = control();
	if (!c || !of_socket(sk, of_server, &m, &a, &v6))
		return 0;
	if (m.proto == IPPROTO_TCP) {
		tp = tcp_of(sk);
		if (tp)
			m.seq = tp->rcv_nxt;
		m.aux = !sk->sk_socket;
	}
	m.tid = bpf_get_current_pid_tgid();
	put_message(c, NSR_HAND_OFF, now, v6, &m, &a, 0);
	if (watch_latency)
		flight_handed_off(c, sk, now, m.proto == IPPROTO_TCP, m.seq, m.lport, m.rport);
	return 0;
}

static __always_inline int length(struct sock *sk, int result, int flags, bool reads)
{
	struct nsr_message m = {.len = result, .aux = flags};
	struct addresses a = {};
	struct task_struct *task;
	struct nsr_control *c;
	struct tcp_sock *tp;
	struct udp_sock *up;
	bool v6, more = false;
	__u64 now;

	if (!(reads ? rx : tx))
		return 0;
	if (is_other_port(sk)) {
		if (reads && sk->__sk_common.skc_dport != bpf_htons(only_port))
			name_reader(sk);
		return 0;
	}
	now = bpf_ktime_get_ns();
	task = bpf_get_current_task_btf();
	m.tid = task->pid;
	c = control();
	m.proto = sk->sk_protocol;
	if (!c || (only_pid && (__u32)task->tgid != only_pid))
		return 0;
	if (!has_messages(sk)) {
		if (sk->sk_protocol == IPPROTO_MPTCP)
			count(c, NSR_MULTIPATH);
		return 0;
	}
	if (reads && flags & MSG_PEEK) {
		count(c, NSR_PEEK);
		return 0;
	}
	if (result < 0 && !(reads && result == -EAGAIN && m.proto == IPPROTO_UDP))
		return 0;
	if (!result && m.proto != IPPROTO_UDP)
		return 0;
	if (!of_socket(sk, of_server, &m, &a, &v6))
		return 0;
	if (m.proto == IPPROTO_TCP) {
		tp = tcp_of(sk);
		if (tp) {
			m.seq = (reads ? tp->copied_seq - fin_was_read(sk, tp) : tp->write_seq) -
				result;
			if (reads && flags & MSG_OOB) /* past the bytes in front */
				m.seq = tp->urg_seq;
			more = reads && tp->rcv_nxt != tp->copied_seq;
		}
	} else if (reads) {
		/* A reader that finds its own queue empty first moves all incoming data into it. */
		up = CAST(sk, struct udp_sock);
		more = up->reader_queue.qlen || sk->sk_receive_queue.qlen;
	}
	call_of(c, task, reads, now, &m);
	put_message(c, reads ? NSR_READ : NSR_SEND, now, v6, &m, &a, 0);
	if (watch_latency && reads) {
		m.laddr = v6 ? 0 : a.l_lo;
		m.raddr = v6 ? 0 : a.r_lo;
		flight_read(sk, &m, now, more);
	}
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_sock_recv_length, struct sock *sk, int result, int flags)
{
	return length(sk, result, flags, true);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_sock_send_length, struct sock *sk, int result, int flags)
{
	return length(sk, result, flags, false);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_netif_receive_skb, struct sk_buff *skb)
{
	__u64 now, hardware = 0;
	struct nsr_message m = {};
	struct addresses a = {};
	struct nsr_control *c;
	const void *l3;
	__u16 eth;
	bool v6;

	if (!rx)
		return 0;
	m.fd = skb->dev->ifindex;
	m.netns = skb->dev->nd_net.net->ns.inum;
	c = control();
	if (!c)
		return 0;
	if ((only_ifindex && (__u32)m.fd != only_ifindex) ||
	    (only_netns && m.netns != only_netns)) {
		left_out(c, 0, 0);
		return 0;
	}
	/* The probe fires before skb_reset_network_header(), so the IP header is at data. */
	l3 = skb->data;
	eth = bpf_ntohs(skb->protocol);
	if (eth == ETH_P_8021Q) {
		if (bpf_probe_read_kernel(&eth, sizeof(eth), l3 + 2))
			return 0;
		eth = bpf_ntohs(eth);
		l3 += 4;
	}
	if (!of_packet(c, l3, eth, skb->len, true, &m, &a, &v6))
		return 0;
	now = bpf_ktime_get_ns();
	m.stamp = skb->tstamp;
	if (hardware_stamps) {
		struct skb_shared_info *shared = (void *)(skb->head + skb->end);

		hardware = BPF_CORE_READ(shared, hwtstamps.hwtstamp);
	}
	m.tid = bpf_get_current_pid_tgid();
	put_message(c, NSR_ARRIVAL, now, v6, &m, &a, hardware);
	if (watch_latency)
		flight_arrived(c, skb, now, m.seq, m.len, m.rport, m.lport);
	return 0;
}

/* On veth and loopback a sender's packet is handed over in the sender's namespace. With a port
 * filter, interface and namespace are therefore not checked. */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_net_dev_start_xmit, struct sk_buff *skb, struct net_device *dev)
{
	__u64 now;
	struct nsr_message m = {};
	struct addresses a = {};
	struct nsr_control *c;
	const void *l3;
	__u8 version;
	__u16 eth;
	bool v6;

	m.fd = dev->ifindex;
	if (!only_port && only_ifindex && (__u32)m.fd != only_ifindex)
		return 0;
	m.netns = dev->nd_net.net->ns.inum;
	if (!only_port && only_netns && m.netns != only_netns)
		return 0;
	c = control();
	if (!c)
		return 0;
	l3 = skb->head + skb->network_header;
	eth = bpf_ntohs(skb->protocol);
	if (eth == ETH_P_8021Q) {
		if (bpf_probe_read_kernel(&version, sizeof(version), l3))
			return 0;
		eth = version >> 4 == 4 ? ETH_P_IP : version >> 4 == 6 ? ETH_P_IPV6 : eth;
	}
	if (!of_packet(c, l3, eth, skb->len - skb->network_header + (skb->data - skb->head), false,
		       &m, &a, &v6))
		return 0;
	now = bpf_ktime_get_ns();
	m.sk = (__u64)skb->sk;
	m.stamp = skb->tstamp;
	m.tid = bpf_get_current_pid_tgid();
	put_message(c, NSR_XMIT, now, v6, &m, &a, 0);
	if (watch_latency)
		flight_sent(skb, now, m.seq, m.len, m.lport, m.rport);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_inet_sock_set_state, struct sock *sk, int old_state, int new_state)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_message m = {.fd = -1, .aux = new_state, .old_state = old_state};
	struct nsr_control *c = control();
	struct addresses a = {};
	bool v6;

	if (!c || sk->sk_protocol != IPPROTO_TCP || !of_socket(sk, of_server, &m, &a, &v6))
		return 0;
	m.tid = bpf_get_current_pid_tgid();
	put_message(c, NSR_STATE, now, v6, &m, &a, 0);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_tcp_retransmit_skb, struct sock *sk, struct sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();
	struct nsr_message m = {};
	struct addresses a = {};
	struct tcp_sock *tp;
	bool v6;

	if (!c || !of_socket(sk, false, &m, &a, &v6))
		return 0;
	tp = tcp_of(sk);
	if (tp)
		m.seq = tp->write_seq;
	put2(c, NSR_RETRANSMIT, now, m.lport | (__u64)m.rport << 16 | (__u64)m.seq << 32, (__u64)sk,
	     v6 ? a.l_lo >> 32 | (a.r_lo & 0xffffffff00000000) : (__u32)a.l_lo | a.r_lo << 32);
	return 0;
}

#endif
