/* SPDX-License-Identifier: GPL-2.0-only */
/* Programs that see sockets: hand-off, send. Reads are in reads.bpf.h. */
#ifndef NSIGHT_MONITOR_SOCKETS_BPF_H
#define NSIGHT_MONITOR_SOCKETS_BPF_H

#include "readers.bpf.h"
#include "stamps.bpf.h"

/* A message that waits in a socket; handoff 0: none waits. */
struct message {
	__u64 arrival; /* 0: not known */
	__u64 handoff;
	__u32 end; /* TCP: the sequence number after it */
	__u32 unused;
};

#define BEHIND 8 /* messages, a power of two */

/* State of a socket */
struct waiting {
	struct message first; /* the next one to be read */
	struct message last;
	__u64 left;    /* when a read left ``first`` behind; 0: none did */
	__u64 request; /* arrival of the first message that was read since the last reply */
	__u32 group, group_epoch;
	/* TCP merges waiting packets, so the messages after the first one are kept here. */
	__u32 taken, added;
	struct message behind[BEHIND];
	__u32 rcv_nxt;	  /* at the last hand-off */
	__u32 copied_seq; /* at the last hand-off or read */
	__u32 others;	  /* datagrams of other devices than the selected one, not yet read */
	bool ours;	  /* a selected process reads from it */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct waiting);
} waiting SEC(".maps");

/* ifindex: the device from which IP got the packet; 0: not known */
static __always_inline __u32 group_of(struct core *core, struct sock *sk, struct waiting *w,
				      __u32 ifindex)
{
	__u32 epoch;

	if (!group_by)
		return GROUP_OTHER;
	epoch = group_epoch; /* before the place is looked up */
	if (w && w->group_epoch == epoch)
		return w->group;
	if (group_by == BY_IFACE) {
		if (!ifindex || !w)
			return GROUP_NONE;
		w->group = group_of_device(core, ifindex, sk->__sk_common.skc_net.net);
	} else if (group_by == BY_COMM) {
		return GROUP_NONE; /* until a process reads */
	} else {
		if (!w)
			return group_of_socket(core, sk);
		w->group = group_of_socket(core, sk);
	}
	w->group_epoch = epoch;
	return w->group;
}

/* The reading process determines the socket's group. */
static __always_inline void group_by_reader(struct core *core, struct waiting *w)
{
	struct group_key key = {};
	__u32 epoch;

	if (group_by != BY_COMM)
		return;
	epoch = group_epoch;
	if (w->group_epoch == epoch || bpf_get_current_comm(&key, sizeof(key)))
		return;
	w->group = group_of_key(core, &key);
	w->group_epoch = epoch;
}

/* Whether only the connection's end is handed off; that takes a sequence number, too. */
static __always_inline bool is_only_end(const struct tcp_sock *tp, const struct waiting *w,
					__u8 state)
{
	__u32 before = w && w->rcv_nxt ? w->rcv_nxt : tp->copied_seq;

	return state != TCP_ESTABLISHED && tp->rcv_nxt - before <= 1;
}

struct arrived {
	__u64 time; /* 0: not known */
	__u32 ifindex;
};

/* The arrival of the segment that TCP is handling */
static __always_inline struct arrived arrival_of_segment(struct core *core, struct sock *sk)
{
	struct arrived a = {};

	if (core->tcp_sk == (__u64)sk) {
		a.time = core->tcp_arrival;
		a.ifindex = core->tcp_ifindex;
		core->tcp_sk = 0;
	}
	return a;
}

/*
 * False: it was handed off before. When the datagram becomes the next to be read, its place in the
 * table gives the time. A reader on another core goes on to it at the same time: either it finds
 * the time here, or this core finds that there is no first message (see advance()).
 */
static __always_inline bool is_handed_off_now(struct packet *p, __u64 now)
{
	return !__sync_val_compare_and_swap(&p->handoff, 0, now);
}

/* So many datagrams of other cores are looked at in one hand-off. */
#define SHARED 8

/*
 * Since Linux 6.18, a core that adds a datagram to a socket also queues the datagrams that other
 * cores add meanwhile, and hands off all of them, one after the other. The newest datagram then has
 * a hand-off already: this one belongs to the newest datagram that has none. NULL: all have one.
 */
static __noinline struct packet *shared_handoff(struct core *core, struct sock *sk, __u64 now)
{
	const struct sk_buff *skb = sk->sk_receive_queue.prev;

	for (__u32 i = 1; i <= SHARED && i < sk->sk_receive_queue.qlen; i++) {
		struct packet *p;
		__u64 buffer;

		skb = skb->prev;
		buffer = buffer_of(core, AT_HANDOFF, skb);
		p = place_of(buffer);
		if (!has_arrived(core, p, buffer, now))
			return NULL;
		if (is_handed_off_now(p, now))
			return p;
	}
	return NULL;
}

/*
 * Whether no datagram was handed off before the first one that waits, and when that one arrived. It
 * is the newest one, or is handed off together with it. If others wait and none is known as the
 * first message, their hand-offs were not seen: before the monitor began, from another device than
 * the selected one, or in a run that the kernel skipped. Then the reads find the next known one.
 */
static __always_inline bool is_first(struct core *core, struct sock *sk, __u64 now,
				     const struct packet *own, __u64 *arrival)
{
	struct udp_sock *up = (struct udp_sock *)sk;
	__u32 n = sk->sk_receive_queue.qlen;
	const struct sk_buff *first;
	struct packet *p;
	__u64 buffer;

	if (!n || BPF_CORE_READ(up, reader_queue.qlen))
		return false;
	if (n == 1)
		return true;
	first = sk->sk_receive_queue.next;
	buffer = buffer_of(core, AT_HANDOFF, first);
	p = place_of(buffer);
	if (!has_arrived(core, p, buffer, now) || (p->handoff && p != own) ||
	    !is_from_device(first, p, true))
		return false;
	*arrival = p->time;
	return true;
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(on_sk_data_ready, struct sock *sk)
{
	const struct sk_buff *newest = sk->sk_receive_queue.prev;
	struct tcp_sock *tp = NULL;
	struct waiting *w;
	struct packet *p = NULL, *other;
	struct core *core;
	struct arrived arrived = {};
	bool tcp, is_its = false;
	__u64 now, arrival, buffer;
	struct message message;
	__u32 group;
	__u8 state;

	if (!is_asked_for(sk))
		return 0;
	tcp = sk->sk_protocol == IPPROTO_TCP;
	state = sk->__sk_common.skc_state;
	/* A listener is woken for connections, not for messages. */
	if (tcp && state == TCP_LISTEN)
		return 0;
	core = this_core();
	w = bpf_sk_storage_get(&waiting, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	/* It fails if another core does the same for the socket's first datagrams. */
	if (!w)
		w = bpf_sk_storage_get(&waiting, sk, 0, 0);
	if (!core || !w) {
		if (core)
			count(core, tcp ? COUNT_NO_ARRIVAL_TCP : COUNT_NO_ARRIVAL_UDP);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (tcp) {
		tp = CAST(sk, struct tcp_sock);
		if (is_only_end(tp, w, state))
			return 0;
		w->rcv_nxt = tp->rcv_nxt;
		w->copied_seq = tp->copied_seq;
		arrived = arrival_of_segment(core, sk);
	}
	if (!arrived.time) {
		/* A datagram, or a segment that tcp_probe has not seen: it is the last one. */
		buffer = buffer_of(core, AT_HANDOFF, newest);
		/* The buffer is new if the packet was cut out of one that held several. */
		if (!tcp && core->merged_arrival)
			remember(buffer, PACKET_RECEIVED, core->merged_arrival, 0,
				 core->merged_on_device);
		p = place_of(buffer);
		is_its = has_arrived(core, p, buffer, now);
		if (!tcp && is_its && !is_handed_off_now(p, now)) {
			/* Else it is a copy, which has the same buffer in several sockets. */
			other = shared_handoff(core, sk, now);
			if (other)
				p = other;
		}
		if (is_its && is_from_device(newest, p, is_its)) {
			arrived.time = p->time;
			arrived.ifindex = newest->skb_iif;
		}
	}
	arrival = arrived.time;
	if (filtered && only_ifindex && !arrival) {
		if (!tcp)
			w->others++;
		return 0;
	}
	if (arrival && now >= arrival) {
		if (!filtered || ((!only_process || w->ours) && !is_short_queue(sk))) {
			group = group_of(core, sk, w, arrived.ifindex);
			if (tcp)
				observe(core, STAGE_TCP_ENQUEUED, group, now - arrival);
			else
				observe(core, STAGE_UDP_ENQUEUED, group, now - arrival);
		}
	} else {
		count(core, tcp ? COUNT_NO_ARRIVAL_TCP : COUNT_NO_ARRIVAL_UDP);
	}
	message = (struct message){.arrival = arrival, .handoff = now, .end = w->rcv_nxt};
	w->last = message;
	if (!w->first.handoff) {
		if (tcp || is_first(core, sk, now, p, &message.arrival))
			w->first = message;
	} else if (tcp && w->added - w->taken < BEHIND) {
		w->behind[w->added++ & (BEHIND - 1)] = message;
	}
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_sock_send_length, struct sock *sk, int result, int flags)
{
	struct waiting *w;
	struct core *core;
	__u64 now, request;

	if (result < 0 || !is_asked_for(sk))
		return 0;
	/* A sender that has received nothing does not answer a request. */
	w = bpf_sk_storage_get(&waiting, sk, 0, 0);
	if (!w)
		return 0;
	/* Another core may change it at any time, so it is read once. */
	request = w->request;
	if (!request)
		return 0;
	w->request = 0;
	core = this_core();
	if (!core)
		return 0;
	now = bpf_ktime_get_ns();
	if (request <= now)
		observe(core, STAGE_REQUEST, group_of(core, sk, w, 0), now - request);
	return 0;
}

#endif
