#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs inside a guest that counts instructions: what the tracepoints cost, off and on. Tab separated: state,
# operation, lowest, median.
set -u

cost=$1/cost
tracing=/sys/kernel/tracing
rounds=2000
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

label() { sed "s/^/$1\t/"; }
events() { for e in timekeeping/timekeeping_update sock/sock_data_queued sock/sock_data_read; do
	[ ! -e "$tracing/events/$e" ] || echo "$1" >"$tracing/events/$e/enable"; done; }

"$cost" "$rounds" | label off

# Each of 200 datagrams and 200 segments of 100 bytes is copied to the reader once.
echo >$tracing/trace
echo 1 >$tracing/events/skb/skb_copy_datagram_iovec/enable
"$cost" 100 >/dev/null
echo 0 >$tracing/events/skb/skb_copy_datagram_iovec/enable
printf 'copies\tskb_copy_datagram_iovec\t%s\tof 400\n' "$(grep -c 'skb_copy_datagram_iovec: .* len=100$' $tracing/trace)"
echo >$tracing/trace

[ -e $tracing/events/timekeeping/timekeeping_update ] || exit 0
events 1
"$cost" "$rounds" | label ftrace
events 0
perf record -q -a -m 1024 -o "$scratch/cost.data" -e timekeeping:timekeeping_update -e sock:sock_data_queued \
	-e sock:sock_data_read -- sh -c "'$cost' $rounds >'$scratch/cost.tsv'"
label perf <"$scratch/cost.tsv"
"$cost" "$rounds" | label off-again
