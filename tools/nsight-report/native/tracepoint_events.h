/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints with more fields than struct nsight_event has room for. They give the message events
 * and clock readings of a recording without BPF (kernel-patches/timekeeping and net, and stock
 * ones). nsight-perfdata --wide writes them to perf-wide.bin: 112 bytes each, little-endian, no
 * holes.
 */
#ifndef NSIGHT_TRACEPOINT_EVENTS_H
#define NSIGHT_TRACEPOINT_EVENTS_H

#include <stdint.h>

#define WIDE_VALUES 11

struct nsight_wide {
	uint64_t ts; /* ns, in perf's recording clock */
	uint16_t kind;
	uint16_t cpu;
	int32_t pid; /* process that was running; -1 unknown */
	int32_t tid;
	int32_t order; /* in the file */
	uint64_t v[WIDE_VALUES];
};

_Static_assert(sizeof(struct nsight_wide) == 112, "np.fromfile relies on 112 bytes");

/* clang-format off */
/*
 * v, in this order; words of an address are 8 bytes as loaded, an IPv4 address is mapped. The order
 * of kinds is part of the format: append only.
 *
 * TIMEKEEPING_UPDATE  cycle_last xtime_nsec base_mono base_real mult shift tai_offset action tk_id cs_id
 * SOCK_DATA_QUEUED    sock_cookie skbaddr hwtstamp tstamp pos len sport dport family protocol skaddr
 * SOCK_DATA_READ      the same
 * NETIF_RECEIVE_SKB   skbaddr len
 * TCP_ADDRESSES       sock_cookie saddr saddr+8 daddr daddr+8
 * CLOCK_MAP           as TIMEKEEPING_UPDATE, of perf's own record: action has CLOCK_SET if the clock was
 *                     set, cs_id is 0, and of a reading (mult 0) xtime_nsec is its error
 * SOCK_STATE          skaddr saddr saddr+8 daddr daddr+8 sport dport, of sock:inet_sock_set_state
 */
#define NSIGHT_WIDE_KINDS(X) \
	X(TIMEKEEPING_UPDATE, "timekeeping_update") \
	X(SOCK_DATA_QUEUED, "sock_data_queued") \
	X(SOCK_DATA_READ, "sock_data_read") \
	X(NETIF_RECEIVE_SKB, "netif_receive_skb") \
	X(TCP_ADDRESSES, "tcp_addresses") \
	X(CLOCK_MAP, "clock_map") \
	X(SOCK_STATE, "sock_state")
/* clang-format on */

enum wide_kind {
#define X(id, name) W_##id,
	NSIGHT_WIDE_KINDS(X)
#undef X
		W_COUNT
};

/* In TIMEKEEPING_UPDATE's action: TIMEKEEPING_TRACE_CLOCK_SET */
#define WIDE_CLOCK_SET 2

#endif
