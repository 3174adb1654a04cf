/* SPDX-License-Identifier: GPL-2.0-only */
/* Programs for the senders' TCP sockets: they reserve room for the option, and write it when a
 * segment is sent. */
#ifndef NSIGHT_SOCKETS_BPF_H
#define NSIGHT_SOCKETS_BPF_H

#include "capsule.bpf.h"

#define SOCKET	     0 /* this point's number */
#define TCP_FLAG_SYN 0x02

#define SOL_TCP			  6
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008 /* for setsockopt in BPF, since Linux 6.14 */

/* Namespaces of the points, by cookie: sockets in other namespaces are left alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u64);
	__type(value, __u8);
} namespaces SEC(".maps");

/*
 * chosen: the connection passes the filter. marked: it has a mark that was set here; a mark set by
 * another program is still needed there. reserved: the segment that is being sent has room for a
 * capsule that was reserved here, not by another program.
 */
struct connection {
	__u8 chosen, marked, reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

static __always_inline bool connection_targeted(const struct nsc_config *c, __u16 local_port,
						__u16 remote_port, const __u32 *local,
						const __u32 *remote)
{
	return c->protocols & NSC_DO_TCP && targeted(c, local_port, remote_port, local, remote);
}

static __always_inline void ends_of(struct bpf_sock_ops *ctx, struct ends *ends)
{
	/* Not in a branch below: the compiler would merge reads of two fields into one that adds to
	 * ctx. */
	__u32 local_ip4 = *(volatile __u32 *)&ctx->local_ip4;
	__u32 remote_ip4 = *(volatile __u32 *)&ctx->remote_ip4;

	ends->sport = ctx->local_port;
	ends->dport = bpf_ntohl(ctx->remote_port);
	ends->protocol = NSC_DO_TCP;
	for (int i = 0; i < 4; i++) {
		ends->saddr[i] = ctx->local_ip6[i];
		ends->daddr[i] = ctx->remote_ip6[i];
	}
	if (ctx->family == AF_INET) {
		v4_mapped(ends->saddr, local_ip4);
		v4_mapped(ends->daddr, remote_ip4);
	}
}

static __always_inline bool socket_targeted(struct bpf_sock_ops *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	struct nsc_config *c = settings();
	struct ends ends;

	if (!c || !bpf_map_lookup_elem(&namespaces, &cookie))
		return false;
	ends_of(ctx, &ends);
	return connection_targeted(c, ends.sport, ends.dport, ends.saddr, ends.daddr);
}

static __always_inline struct connection *connection_of(struct bpf_sock_ops *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&connections, sk, NULL, flags) : NULL;
}

static __always_inline void choose(struct bpf_sock_ops *ctx)
{
	struct connection *connection = connection_of(ctx, BPF_SK_STORAGE_GET_F_CREATE);

	if (!connection)
		return;
	connection->chosen = true;
	if (ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		return;
	connection->marked = true;
	bpf_sock_ops_cb_flags_set(ctx,
				  ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff___control {
	char cb[48];
};

struct dst_entry___hiding {
	struct xfrm_state *xfrm; /* absent without CONFIG_XFRM */
	struct lwtunnel_state *lwtstate;
};

struct sock___routed {
	struct dst_entry___hiding *sk_dst_cache;
};

struct bpf_sock_ops_kern {
	struct sock___routed *sk;
	struct sk_buff___control *skb;
};

struct tcp_skb_cb___size {
	__u16 tcp_gso_size; /* of each segment to be made; 0: it is a single one */
};

#pragma clang attribute pop

/*
 * Whether the connection's route encrypts or wraps its segments before a device sees them: no point
 * could find the capsule, nor take it off.
 */
static __always_inline bool hidden(struct bpf_sock_ops *ctx)
{
	struct bpf_sock_ops_kern *kernel = bpf_cast_to_kern_ctx(ctx);
	struct dst_entry___hiding *dst = BPF_CORE_READ(kernel, sk, sk_dst_cache);

	if (!dst)
		return false;
	return BPF_CORE_READ(dst, lwtstate) ||
	       (bpf_core_field_exists(dst->xfrm) && BPF_CORE_READ(dst, xfrm));
}

/*
 * Whether a segment with a capsule still fits into the connection's MSS. MTU probes are longer, and
 * so are segments whose MSS was computed when SACK blocks left no room.
 */
static __always_inline bool segment_fits(struct bpf_sock_ops *ctx)
{
	struct bpf_sock_ops_kern *kernel = bpf_cast_to_kern_ctx(ctx);
	struct tcp_skb_cb___size *control = (void *)BPF_CORE_READ(kernel, skb)->cb;
	__u32 payload = BPF_CORE_READ(control, tcp_gso_size);

	return (payload ?: ctx->skb_len) + NSC_BYTES <= ctx->mss_cache;
}

/*
 * Room is reserved whenever the MSS is computed, so that the option makes no segment longer than
 * the MTU. Which segments get a capsule is decided when they are sent.
 */
static __always_inline void option_length(struct bpf_sock_ops *ctx)
{
	struct connection *connection = connection_of(ctx, 0);
	struct nsc_config *c = settings();

	if (!connection)
		return;
	if (ctx->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS) {
		if (connection->chosen)
			bpf_reserve_hdr_opt(ctx, NSC_BYTES, 0);
		return;
	}
	connection->reserved = false;
	if (!connection->chosen)
		return;
	/* No capsule without payload: it would only keep the peer off its fast path. */
	if (!c || ctx->skb_tcp_flags & TCP_FLAG_SYN || !ctx->skb_len || !drawn(c) ||
	    !due(c, bpf_ktime_get_ns()))
		return;
	count(SOCKET, NSC_C_DRAWN);
	if (hidden(ctx))
		count(SOCKET, NSC_C_SKIP_TUNNEL);
	else if (!segment_fits(ctx))
		count(SOCKET, NSC_C_SKIP_MTU);
	else if (bpf_reserve_hdr_opt(ctx, NSC_BYTES, 0))
		count(SOCKET, NSC_C_SKIP_ROOM);
	else
		connection->reserved = true;
}

static __always_inline void write_option(struct bpf_sock_ops *ctx)
{
	struct connection *connection = connection_of(ctx, 0);
	struct tcphdr *tcp = ctx->skb_data;
	struct nsc_capsule capsule;
	struct ends ends;
	__u32 seq;

	if (!connection || !connection->reserved)
		return;
	connection->reserved = false;
	if ((void *)(tcp + 1) > ctx->skb_data_end) {
		count(SOCKET, NSC_C_SKIP_MEMORY);
		return;
	}
	seq = bpf_ntohl(tcp->seq);
	ends_of(ctx, &ends);
	/* A segment that is sent for the first time begins at snd_nxt. */
	born(&capsule, bpf_ktime_get_ns(), seq, seq != ctx->snd_nxt, annotation(&ends));
	neutralize(&capsule, wanted_sum(IPPROTO_TCP, 0));
	count(SOCKET,
	      bpf_store_hdr_opt(ctx, &capsule, NSC_BYTES, 0) ? NSC_C_SKIP_ROOM : NSC_C_BORN);
}

SEC("sockops")
int at_socket(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (socket_targeted(ctx))
			choose(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		option_length(ctx);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(ctx);
		break;
	}
	return 1;
}

/* Existing connections: the iterator runs in each namespace of the points. */
__u64 n_changed, n_refused;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter__tcp {
	struct sock_common *sk_common;
};

#pragma clang attribute pop

/*
 * nsight-stamp sets these before it runs the iterator. choose_none: no connection is chosen any
 * more. clear_all: marks are removed from every connection, since it is unknown who set them.
 */
volatile bool choose_none, clear_all;

/* Set or remove the mark of a connection with these flags. */
static __always_inline bool mark(struct tcp_sock *tcp, int flags)
{
	flags ^= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (bpf_setsockopt(tcp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags))) {
		n_refused++;
		return false;
	}
	return true;
}

static __always_inline bool wanted(const struct sock_common *common, const struct nsc_config *c)
{
	__u32 local[4], remote[4];

	if (common->skc_family == AF_INET) {
		v4_mapped(local, common->skc_rcv_saddr);
		v4_mapped(remote, common->skc_daddr);
	} else {
		BPF_CORE_READ_INTO(&local, common, skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&remote, common, skc_v6_daddr);
	}
	return connection_targeted(c, common->skc_num, bpf_ntohs(common->skc_dport), local, remote);
}

static __always_inline void follow(struct tcp_sock *tcp, bool chosen, int flags)
{
	struct connection *connection = bpf_sk_storage_get(
		&connections, tcp, NULL, chosen ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	bool is_marked = flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;

	if (!connection) {
		n_refused += chosen;
		return;
	}
	if (connection->chosen == chosen)
		return;
	if (chosen ? !is_marked : connection->marked && is_marked) {
		if (!mark(tcp, flags))
			return;
		connection->marked = chosen;
	}
	connection->chosen = chosen;
	n_changed++;
}

SEC("iter/tcp")
int each_connection(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct nsc_config *c = settings();
	struct tcp_sock *tcp;
	bool chosen;
	int flags;

	if (!common || !c)
		return 0;
	tcp = bpf_skc_to_tcp_sock(common);
	if (!tcp || common->skc_state == TCP_LISTEN)
		return 0;
	chosen = !choose_none && wanted(common, c);
	if (bpf_getsockopt(tcp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		n_refused += chosen;
	else if (!clear_all)
		follow(tcp, chosen, flags);
	else if (flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		n_changed += mark(tcp, flags);
	return 0;
}

#endif
