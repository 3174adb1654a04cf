/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The trigger of the flight recorder. A message's latency is known when it is read, so it is
 * compared with the limit there; no data leaves the kernel for that.
 *
 * The latency is that of the oldest message that waits in the socket. It starts where this machine
 * sent the message (loopback, veth), else where the network stack received its packet, or, if
 * neither is known, at the hand-off to the socket. After a read that leaves messages behind, it
 * starts at the last hand-off before that read; for those messages it is a lower bound.
 */
#ifndef NSIGHT_FLIGHT_BPF_H
#define NSIGHT_FLIGHT_BPF_H

#include "flight_triggers.h"
#include "ring.bpf.h"

/* ns above which a message of any service is slow; 0: no such limit */
const volatile __u64 latency_limit;
/* Each service also has a limit of its own once that is known. */
const volatile bool by_service;
/* At least one latency limit is set. */
const volatile bool watch_latency;

#define MAX_WAIT_NS  10000000000ull
#define SENT_ENTRIES 4096

/* The newest slow messages; the number field shows which one is in place n % FLIGHT_TRIGGERS. */
struct flight_trigger flight_triggers[FLIGHT_TRIGGERS];
__u64 n_flight_triggers;
/* Messages of services that did not fit into the table */
__u64 n_no_service;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLIGHT_SERVICES);
	__type(key, __u32);
	__type(value, struct flight_service);
} services SEC(".maps");

/* Messages that wait in a socket */
struct waiting {
	__u64 first; /* since when the oldest one waits; 0: none waits */
	__u64 last;  /* since when the newest one waits */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct waiting);
} waiting SEC(".maps");

/* Packets that this machine sent and may itself receive. Of datagrams with the same length and
 * ports only the newest is kept. */
struct sent {
	__u64 skb, time;
	__u32 seq, ports;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SENT_ENTRIES);
	__type(key, __u32);
	__type(value, struct sent);
} sent SEC(".maps");

static __always_inline struct sent *sent_of(__u32 seq, __u32 length, __u32 ports)
{
	__u32 at = (seq + ports * 31 + length) * 0x9e3779b1u >> 20;

	return bpf_map_lookup_elem(&sent, &at);
}

static __always_inline void flight_sent(const struct sk_buff *skb, __u64 now, __u32 seq,
					__u32 length, __u16 source, __u16 dest)
{
	__u32 ports = source | (__u32)dest << 16;
	struct sent *s = sent_of(seq, length, ports);

	if (!s)
		return;
	s->skb = 0;
	barrier();
	s->time = now;
	s->seq = seq;
	s->ports = ports;
	barrier();
	s->skb = (__u64)skb;
}

/* The core now handles this packet. end: the sequence number after its last byte. */
static __always_inline void flight_arrived(struct nsr_control *c, const struct sk_buff *skb,
					   __u64 now, __u32 seq, __u32 length, __u16 source,
					   __u16 dest)
{
	__u32 ports = source | (__u32)dest << 16;
	struct sent *s = sent_of(seq, length, ports);
	__u64 since = now;

	if (s && s->skb == (__u64)skb && s->seq == seq && s->ports == ports) {
		if (s->time < now && now - s->time < MAX_WAIT_NS)
			since = s->time;
		s->skb = 0;
	}
	c->arrival.since = since;
	c->arrival.ports = ports;
	c->arrival.end = seq + length;
}

/* A message waits in the socket. */
static __always_inline void flight_handed_off(struct nsr_control *c, struct sock *sk, __u64 now,
					      bool tcp, __u32 end, __u16 lport, __u16 rport)
{
	struct waiting *w = bpf_sk_storage_get(&waiting, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	__u64 since = now;

	/* It fails if another core does the same for the socket's first datagrams. */
	if (!w)
		w = bpf_sk_storage_get(&waiting, sk, 0, 0);
	if (!w)
		return;
	/* While a thread holds the socket, the hand-off is delayed, and other packets may have
	 * arrived since. */
	if (c->arrival.since && c->arrival.ports == (rport | (__u32)lport << 16) &&
	    (!tcp || c->arrival.end == end))
		since = c->arrival.since;
	c->arrival.since = 0;
	w->last = since;
	if (!w->first || w->first < watched_from)
		w->first = since;
}

static __always_inline struct flight_service *service_of(const struct nsr_message *m)
{
	/* A UDP socket that is not connected has no remote port. */
	bool local = !m->rport || m->lport < m->rport;
	__u64 key = (local ? m->lport | FLIGHT_LOCAL : m->rport) | FLIGHT_USED |
		    (__u64)m->netns << 32,
	      old;
	struct flight_service *s;
	__u32 at, place;

	if (m->proto == IPPROTO_UDP)
		key |= FLIGHT_UDP;
	at = ((__u32)key ^ m->netns) * 0x9e3779b1u >> 24;
	for (int i = 0; i < FLIGHT_PROBES; i++) {
		place = (at + i) & (FLIGHT_SERVICES - 1);
		s = bpf_map_lookup_elem(&services, &place);
		if (!s)
			return NULL;
		if (s->key == key)
			return s;
	}
	/* Look at all places first: an earlier one may have become free. */
	for (int i = 0; i < FLIGHT_PROBES; i++) {
		place = (at + i) & (FLIGHT_SERVICES - 1);
		s = bpf_map_lookup_elem(&services, &place);
		if (!s)
			return NULL;
		old = s->key;
		if (!old)
			old = __sync_val_compare_and_swap(&s->key, 0, key);
		if (!old || old == key)
			return s;
	}
	__sync_fetch_and_add(&n_no_service, 1);
	return NULL;
}

/* A message was read. more: others still wait in the socket. */
static __always_inline void flight_read(struct sock *sk, const struct nsr_message *m, __u64 now,
					bool more)
{
	struct waiting *w = bpf_sk_storage_get(&waiting, sk, 0, 0);
	__u64 since, latency, limit = latency_limit, n;
	struct flight_service *s;
	struct flight_trigger *t;
	__u32 bucket;

	if (!w)
		return;
	since = w->first;
	w->first = more ? w->last : 0;
	/* Either nothing was there to read: what was handed off had a wrong checksum. Or recording
	 * was paused during a read, and the arrival time of this message is not known. */
	if (!since || since < watched_from || since > now || (__s32)m->len < 0)
		return;
	latency = now - since;
	s = by_service ? service_of(m) : NULL;
	if (s) {
		bucket = flight_bucket(latency);
		if (bucket < FLIGHT_BUCKETS)
			__sync_fetch_and_add(&s->n[bucket], 1);
		if (s->limit && (!limit || s->limit < limit))
			limit = s->limit;
	}
	if (!limit || latency < limit)
		return;
	n = __sync_fetch_and_add(&n_flight_triggers, 1);
	t = flight_trigger_begin(flight_triggers, n);
	if (!t)
		return;
	t->time = now;
	t->latency = latency;
	t->limit = limit;
	t->laddr = m->laddr;
	t->raddr = m->raddr;
	t->netns = m->netns;
	t->tid = m->tid;
	t->cpu = bpf_get_smp_processor_id();
	t->len = m->len;
	t->lport = m->lport;
	t->rport = m->rport;
	flight_trigger_end(t, n);
}

#endif
