// SPDX-License-Identifier: GPL-2.0-only
/* Another program for TCP sockets: it puts an option of four bytes into the headers of every
 * connection. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#define OPTION_BYTES 4

SEC("sockops")
int another(struct bpf_sock_ops *ctx)
{
	__u8 option[OPTION_BYTES] = {253, OPTION_BYTES, 'x', 'y'};

	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags |
						       BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		bpf_reserve_hdr_opt(ctx, OPTION_BYTES, 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		bpf_store_hdr_opt(ctx, option, OPTION_BYTES, 0);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
