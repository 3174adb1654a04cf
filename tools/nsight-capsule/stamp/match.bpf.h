/* SPDX-License-Identifier: GPL-2.0-only */
/* The tc program that changes no packet: it records them by their fields. */
#ifndef NSIGHT_MATCH_BPF_H
#define NSIGHT_MATCH_BPF_H

#include "capsule.bpf.h"

/* Hash of fields that no point changes: a packet has the same key at each point. */
static __always_inline __u64 mixed(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

#define MATCH_BYTES 32 /* of a datagram's payload, at most */

static __always_inline __u64 key_of(struct __sk_buff *skb, const struct packet *p)
{
	__u64 hash = mixed(0, (__u64)p->sport << 48 | (__u64)p->dport << 32 | p->proto);
	__u64 words[MATCH_BYTES / 8] = {0};
	__u32 length = p->payload;

	for (int i = 0; i < 4; i++)
		hash = mixed(hash, (__u64)p->saddr[i] << 32 | p->daddr[i]);
	if (p->proto == IPPROTO_TCP)
		return mixed(hash, (__u64)p->seq << 32 | p->payload);
	hash = mixed(hash, length);
	if (!p->v6) {
		__be16 id = 0;

		bpf_skb_load_bytes(skb, p->l3 + offsetof(struct iphdr, id), &id, sizeof(id));
		hash = mixed(hash, id);
	}
	if (length > MATCH_BYTES)
		length = MATCH_BYTES;
	barrier_var(length);
	/* Already from 1 to MATCH_BYTES, as there is payload; this shows it to the verifier. */
	length = ((length - 1) & (MATCH_BYTES - 1)) + 1;
	bpf_skb_load_bytes(skb, p->l4 + p->header, words, length);
	for (int i = 0; i < MATCH_BYTES / 8; i++)
		hash = mixed(hash, words[i]);
	return hash;
}

/* Read-only mode: a record at each point; which packets are chosen follows from their fields. */
SEC("tc")
int at_match(struct __sk_buff *skb)
{
	struct nsc_config *c = settings();
	struct packet p;
	__u64 key;

	if (!c)
		return GO_ON;
	if (!(c->points >> point & 1))
		return GO_ON;
	parse(skb, ethernet, c->vxlan_port, &p);
	if (p.fragment) {
		count(point, NSC_C_UNMATCHABLE);
		return GO_ON;
	}
	if (!p.proto || !(c->protocols & (p.proto == IPPROTO_TCP ? NSC_DO_TCP : NSC_DO_UDP)))
		return GO_ON;
	if (!p.payload)
		return GO_ON;
	parse_addresses(skb, &p);
	if (!targeted(c, p.sport, p.dport, p.saddr, p.daddr))
		return GO_ON;
	if (!(annotation_of(&p) & class_bit))
		return GO_ON;
	key = key_of(skb, &p);
	if ((key >> 32) >= c->threshold)
		return GO_ON;
	count(point, record(skb, &p, NSC_MATCH, bpf_ktime_get_ns(), NULL, key) ? NSC_C_MATCHED
									       : NSC_C_MATCH_LOST);
	return GO_ON;
}

#endif
