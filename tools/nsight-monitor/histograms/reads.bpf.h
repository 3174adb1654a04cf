/* SPDX-License-Identifier: GPL-2.0-only */
/* Programs that see reads: which message a read returns, and how long that one waited. */
#ifndef NSIGHT_MONITOR_READS_BPF_H
#define NSIGHT_MONITOR_READS_BPF_H

#include "calls.bpf.h"
#include "sockets.bpf.h"

#define MSG_ERRQUEUE 0x2000 /* reads from the error queue, which are no messages */

/* The datagram to be read next; false: there is none. */
static __always_inline bool next_datagram(struct core *core, struct sock *sk, __u64 *buffer,
					  __u32 *iif)
{
	const struct sk_buff *next = sk->sk_receive_queue.next;
	struct udp_sock *up = CAST(sk, struct udp_sock);

	if (up->reader_queue.qlen)
		next = up->reader_queue.next;
	else if (!sk->sk_receive_queue.qlen)
		return false;
	*buffer = buffer_of(core, AT_READ, next);
	*iif = next->skb_iif;
	return true;
}

/* The next datagram becomes the first message. False: there is none, or it came through another
 * device than the selected one, or its hand-off is still to come. */
static __always_inline bool next_of_datagrams(struct core *core, struct sock *sk, struct waiting *w)
{
	struct packet *p;
	__u64 next;
	__u32 iif;

	if (!next_datagram(core, sk, &next, &iif))
		return false;
	p = place_of(next);
	if (!is_known(p, next, PACKET_RECEIVED)) {
		if (filtered && only_ifindex && iif != only_ifindex)
			return false;
		count(core, COUNT_READ_BORROWED);
		w->first = w->last;
	} else if (p->handoff) {
		w->first.arrival = p->time;
		barrier();
		w->first.handoff = p->handoff;
	} else {
		return false;
	}
	return true;
}

/* The first message after the bytes that were read becomes the first one. True: there is one. */
static __always_inline bool next_of_stream(struct core *core, struct waiting *w, __u32 copied_seq)
{
	for (int i = 0; i < BEHIND && w->taken != w->added; i++) {
		struct message *m = &w->behind[w->taken & (BEHIND - 1)];

		w->taken++;
		if ((__s32)(m->end - copied_seq) > 0) {
			w->first = *m;
			return true;
		}
	}
	/* More messages waited than there is room for. */
	count(core, COUNT_READ_BORROWED);
	w->first = w->last;
	return true;
}

/* Whether only a part of what was handed off was read. */
static __always_inline bool is_part(__u32 end, __u32 copied_seq)
{
	return (__s32)(end - copied_seq) > 0;
}

/* Everything was read: the next hand-off is the first message. */
static __always_inline bool is_last(const struct waiting *w, __u32 copied_seq, bool ending)
{
	return (__s32)(w->rcv_nxt - ending - copied_seq) <= 0;
}

/* Messages before ``begin``, where a read began, were taken without a read probe: by a
 * sockmap, sendfile into a pipe, or io_uring's splice. */
static __always_inline void skip_taken(struct core *core, struct waiting *w, __u32 begin)
{
	if (!w->first.handoff || is_part(w->first.end, begin))
		return;
	count(core, COUNT_TAKEN);
	w->left = 0;
	w->first.handoff = 0;
	barrier();
	next_of_stream(core, w, begin);
	/* The hand-off of the data that was read is still to come. */
	if (!is_part(w->first.end, begin))
		w->first.handoff = 0;
}

/* Go on to the message after the one that was read. */
static __always_inline void advance(struct core *core, struct sock *sk, struct waiting *w, bool tcp,
				    struct message read, __u64 now)
{
	__u32 copied_seq = 0;

	/* From here on, a hand-off on another core finds no first message and becomes the first. */
	w->left = 0;
	if (tcp)
		w->first.handoff = 0;
	else /* also orders what follows */
		__sync_lock_test_and_set(&w->first.handoff, 0);
	barrier();
	if (tcp) {
		struct tcp_sock *tp = CAST(sk, struct tcp_sock);
		bool ending = sk->__sk_common.skc_state != TCP_ESTABLISHED;

		copied_seq = tp->copied_seq;
		w->copied_seq = copied_seq;
		if (is_last(w, copied_seq, ending))
			return;
		if (is_part(read.end, copied_seq)) {
			w->first = read;
			return;
		}
	}
	if (tcp ? !next_of_stream(core, w, copied_seq) : !next_of_datagrams(core, sk, w))
		return;
	w->left = now;
}

/* The current thread reads the first message, which waits since handoff. */
static __always_inline void observe_read(struct core *core, struct sock *sk, struct waiting *w,
					 bool tcp, __u64 handoff)
{
	/* Another reader of the socket may change these at any time, so they are read once, and
	 * before now. */
	__u64 arrival = w->first.arrival, left = w->left, now = bpf_ktime_get_ns();
	struct message read = {.arrival = arrival, .handoff = handoff, .end = w->first.end};
	struct task_struct *task;
	struct histograms *all;
	bool ours = true;
	__u32 group;

	if (only_process)
		w->ours = ours = is_process_asked_for();
	if (ours && now >= handoff && !is_short_queue(sk)) {
		group_by_reader(core, w);
		group = group_of(core, sk, w, 0);
		all = histograms_of(core, group);
		observe_in(core, all, STAGE_HANDOFF_READ, group, now - handoff);
		if (!arrival)
			count(core, COUNT_READ_NO_ARRIVAL);
		else if (tcp)
			observe_in(core, all, STAGE_TCP_READ, group, now - arrival);
		else
			observe_in(core, all, STAGE_UDP_READ, group, now - arrival);
		if (left)
			observe_in(core, all, STAGE_HEAD_OF_LINE, group,
				   now - (left > handoff ? left : handoff));
		if (wanted(STAGE_RUN_QUEUE)) {
			task = bpf_get_current_task_btf();
			observe_run_queue(core, all, task, group, handoff, now);
		}
		if (!w->request)
			w->request = arrival;
	}
	advance(core, sk, w, tcp, read, now);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_sock_recv_length, struct sock *sk, int result, int flags)
{
	struct waiting *w;
	struct core *core;
	__u64 handoff;
	bool tcp;

	if (result < 0 || !is_asked_for(sk))
		return 0;
	tcp = sk->sk_protocol == IPPROTO_TCP;
	if (tcp && !result)
		return 0;
	core = this_core();
	if (!core)
		return 0;
	if (flags & (MSG_PEEK | MSG_ERRQUEUE)) {
		count(core, COUNT_PEEK);
		return 0;
	}
	w = bpf_sk_storage_get(&waiting, sk, 0, 0);
	if (w && tcp) {
		struct tcp_sock *tp = CAST(sk, struct tcp_sock);

		skip_taken(core, w, tp->copied_seq - fin_was_read(sk, tp) - result);
	}
	handoff = w ? w->first.handoff : 0;
	if (handoff) {
		observe_read(core, sk, w, tcp, handoff);
		return 0;
	}
	if (w && !tcp && w->others)
		w->others--;
	else if (!only_process || is_process_asked_for())
		count(core, COUNT_READ_NO_HANDOFF);
	if (w && !tcp)
		advance(core, sk, w, false, (struct message){}, bpf_ktime_get_ns());
	return 0;
}

/* Every reader of a TCP socket comes by, also one that found nothing. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(on_tcp_rcv_space_adjust, struct sock *sk)
{
	struct tcp_sock *tp;
	struct waiting *w;
	struct core *core;
	__u64 handoff;

	if (!reads_without_length() || !is_asked_for(sk))
		return 0;
	core = this_core();
	w = bpf_sk_storage_get(&waiting, sk, 0, 0);
	tp = CAST(sk, struct tcp_sock);
	if (!core || !w || tp->copied_seq == w->copied_seq)
		return 0;
	/* Not if only the connection's end was taken */
	handoff = w->first.handoff;
	if (handoff)
		observe_read(core, sk, w, true, handoff);
	return 0;
}

#endif
