#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs inside the guest of boot.py: selftests, then the events of one TCP and one UDP message, recorded by perf.
#
#     guest-test.sh PROGRAMS        folder with timekeeping-trace, sock_data_trace and cost
set -u

programs=$1
bad=0

say() { echo "== $*"; }
try() { "$@" || { echo "FAILED: $*"; bad=1; }; }

say "kernel $(uname -r), clocksource $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"

say "selftest: timekeeping-trace, with the clock slewed and stepped"
try "$programs/timekeeping-trace" -s -n 40000 -c 10000000
say "selftest: sock_data_trace"
try "$programs/sock_data_trace"

say "perf record: the time of one update, one TCP and one UDP message"
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
data=$scratch/messages.data
perf record -q -a -o "$data" -e timekeeping:timekeeping_update -e sock:sock_data_queued -e sock:sock_data_read \
	-- "$programs/cost" 1 >/dev/null || bad=1
perf script -i "$data" -F trace:comm,tid,cpu,time,event,trace >"$scratch/script" || bad=1
for event in timekeeping:timekeeping_update sock:sock_data_queued sock:sock_data_read; do
	say "$event: $(grep -c "$event" "$scratch/script") events in perf.data, the last ones:"
	grep "$event.*protocol=17" "$scratch/script" | tail -n 1
	grep "$event.*protocol=6" "$scratch/script" | tail -n 1
	grep "$event.*tk_id" "$scratch/script" | tail -n 1
	grep -q "$event" "$scratch/script" || bad=1
done
for protocol in 6 17; do
	grep -q "sock_data_read.*protocol=$protocol .*len=100 " "$scratch/script" || { echo "FAILED: no read, protocol $protocol"; bad=1; }
done
# One system call of adjtimex is one update: where the trace says otherwise, updates are missing.
[ "$bad" -eq 0 ] && say "all passed"
exit "$bad"
