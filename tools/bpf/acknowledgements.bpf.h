/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When the driver had given sent data to the device, and when the peer acknowledged it. The kernel
 * calls a sock_ops program for the last byte of each send call if such a program has set a flag on
 * the socket (Linux 6.15). Applications do not notice.
 */
#ifndef NSIGHT_ACKNOWLEDGEMENTS_BPF_H
#define NSIGHT_ACKNOWLEDGEMENTS_BPF_H

#include "messages.bpf.h"

/* From kernels that may be newer than the installed headers */
#define SK_BPF_CB_FLAGS		       1009
#define SK_BPF_CB_TX_TIMESTAMPING      1
#define BPF_SOCK_OPS_TSTAMP_SND_SW_CB  17
#define BPF_SOCK_OPS_TSTAMP_ACK_CB     19
#define BPF_SOCK_OPS_TSTAMP_SENDMSG_CB 20
#define SOL_SOCKET		       1
#define SCM_TSTAMP_SND		       0
#define SCM_TSTAMP_ACK		       2

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_sock_ops_kern {
	struct sock *sk;
	struct sk_buff *skb;
};

struct bpf_iter__tcp {
	struct sock_common *sk_common;
};

#pragma clang attribute pop

/* include/net/tcp.h: struct tcp_skb_cb begins with these two. */
struct tcp_bytes {
	__u32 seq, end_seq;
};

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;
extern int bpf_sock_ops_enable_tx_tstamp(struct bpf_sock_ops_kern *ctx, __u64 flags) __ksym __weak;

/* Existing connections: flag changed, not changed; and whether the iterator clears the flag */
__u64 n_asked, n_not_asked;
volatile bool ask_no_more;

static __always_inline void completed(struct bpf_sock_ops_kern *ctx, __u32 what)
{
	struct sk_buff *skb = ctx->skb;
	struct nsr_message m = {.fd = -1, .aux = what};
	__u64 now = bpf_ktime_get_ns();
	struct nsr_control *c = control();
	struct addresses a = {};
	struct tcp_bytes bytes;
	bool v6;

	if (!c || !of_socket(ctx->sk, of_server, &m, &a, &v6))
		return;
	if (what == SCM_TSTAMP_ACK) {
		/* The segment waits in the socket without headers. */
		if (bpf_probe_read_kernel(&bytes, sizeof(bytes), &skb->cb))
			return;
		m.seq = bytes.seq;
		m.len = bytes.end_seq - bytes.seq;
	} else {
		/* Below TCP the control block is another's: the key is the last byte's number. */
		struct skb_shared_info *shared = (void *)(skb->head + skb->end);

		m.seq = BPF_CORE_READ(shared, tskey);
		m.len = 1;
	}
	put_message(c, NSR_COMPLETION, now, v6, &m, &a, 0);
}

SEC("sockops")
int on_sock_ops(struct bpf_sock_ops *ctx)
{
	struct bpf_sock_ops_kern *kernel;
	int flags = SK_BPF_CB_TX_TIMESTAMPING;

	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		kernel = bpf_cast_to_kern_ctx(ctx);
		if (!is_other_port(kernel->sk))
			bpf_setsockopt(ctx, SOL_SOCKET, SK_BPF_CB_FLAGS, &flags, sizeof(flags));
		break;
	case BPF_SOCK_OPS_TSTAMP_SENDMSG_CB:
		kernel = bpf_cast_to_kern_ctx(ctx);
		bpf_sock_ops_enable_tx_tstamp(kernel, 0);
		break;
	case BPF_SOCK_OPS_TSTAMP_ACK_CB:
		kernel = bpf_cast_to_kern_ctx(ctx);
		completed(kernel, SCM_TSTAMP_ACK);
		break;
	case BPF_SOCK_OPS_TSTAMP_SND_SW_CB:
		kernel = bpf_cast_to_kern_ctx(ctx);
		completed(kernel, SCM_TSTAMP_SND);
		break;
	}
	return 1;
}

SEC("iter/tcp")
int each_connection(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	int flags = ask_no_more ? 0 : SK_BPF_CB_TX_TIMESTAMPING;
	struct tcp_sock *tcp;

	if (!common)
		return 0;
	tcp = bpf_skc_to_tcp_sock(common);
	if (!tcp || common->skc_state == TCP_LISTEN || is_other_port((struct sock *)tcp))
		return 0;
	if (bpf_setsockopt(tcp, SOL_SOCKET, SK_BPF_CB_FLAGS, &flags, sizeof(flags)))
		n_not_asked++;
	else
		n_asked++;
	return 0;
}

#endif
