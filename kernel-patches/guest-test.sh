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

# The selftest restores the clock and leaves no buffer of events, whichever way it ends.
clock() { busybox adjtimex | sed -n 's/.*\(freq\|status\|precision\)[^:]*: */\1 /p' | tr '\n' ' '; }
restored() { [ "$(clock)" = "$1" ] || { echo "clock: $(clock), not $1"; return 1; }; }
removed() { [ ! -d /sys/kernel/tracing/instances/selftest_timekeeping ] || { echo "its instance is there"; return 1; }; }
busybox adjtimex -f 1234567 >/dev/null
before=$(clock)

say "selftest: timekeeping-trace, with the clock slewed and stepped"
try "$programs/timekeeping-trace" -n 40000 -c 10000000
try restored "$before"
removed || bad=1
say "selftest: timekeeping-trace, ended by a signal"
"$programs/timekeeping-trace" -n 4000000 >/dev/null &
while restored "$before" >/dev/null && kill -0 $! 2>/dev/null; do busybox usleep 10000; done
changed=$(clock)
kill -TERM $!
wait $!
[ $? -eq 143 ] || { echo "FAILED: not ended by the signal"; bad=1; }
say "clock: $before, then $changed, then $(clock)"
try restored "$before"
removed || bad=1
busybox adjtimex -f 0 >/dev/null
say "selftest: timekeeping-trace, only reading"
try "$programs/timekeeping-trace" -r -n 4000 -c 100000
say "selftest: sock_data_trace"
try "$programs/sock_data_trace"

say "skb_copy_datagram_iovec: 200 datagrams and 200 segments of 100 bytes"
tracing=/sys/kernel/tracing
echo >$tracing/trace
# The program sends floods of other lengths, too: 6.1's buffer would keep nothing but those.
echo 1024 >$tracing/buffer_size_kb
echo 1 >$tracing/events/skb/skb_copy_datagram_iovec/enable
"$programs/cost" 100 >/dev/null
echo 0 >$tracing/events/skb/skb_copy_datagram_iovec/enable
copies=$(grep -c 'skb_copy_datagram_iovec: .* len=100$' $tracing/trace)
say "$copies events"
[ "$copies" -eq 400 ] || { echo "FAILED: not 400"; head -n 20 $tracing/trace; bad=1; }

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
