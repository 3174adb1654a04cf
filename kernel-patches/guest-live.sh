#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs inside the guest of boot.py: memcached under load, disturbed by a hog, recorded by perf alone (no BPF).
#
#     guest-live.sh OUT PERF        OUT: an empty folder for results; PERF: a perf with --clock-map
#
# Two network namespaces joined by a veth pair whose clock stamps what it receives (test-only/), memcached in one,
# the load client in the other. Two recordings, one after the other:
#
#   map     by PERF with --clock-map: perf's own clock, as with Intel PT; the system's clocks are in the file
#   mono    by the distribution's perf with -k CLOCK_MONOTONIC
#
# Each is a folder: perf.data, what load clients and hog logged (load.tsv, load-udp.tsv, hog.tsv: CLOCK_MONOTONIC),
# clock.tsv (nsight-clock, with the readings of the network device's clock), start.json, stop.json, sockets. Beside
# them: facts.json, nics-*.json, kallsyms, processes.txt.
#
# During each the system's clock is slewed and stepped. SECONDS_EACH, RATE: length of a recording, requests a second.
# shellcheck disable=SC2086 # lists of words
set -eu

out=$1
perf=$2
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")
seconds=${SECONDS_EACH:-6}
rate=${RATE:-150}
skew_ppb=25000
delay_ns=4000
jitter_ns=2000
tracing=/sys/kernel/tracing
scratch=$(mktemp -d)
pids=
srv=198.18.77.1
cli=198.18.77.2

say() { echo "== $*"; }
cleanup() { [ -z "$pids" ] || kill $pids 2>/dev/null || :; rm -rf "$scratch"; }
trap cleanup EXIT

python() { PYTHONPATH="$top/tools/nsight-record" /usr/bin/python3 -B -c "$@"; }
# No functions: $! of "function &" would be a shell's.
in_srv="nsenter --net=/run/netns/srv --"
in_cli="nsenter --net=/run/netns/cli --"
now() { python 'import json
from nsight_record import host
print(json.dumps(host.Clocks().now()))'; }

for ns in srv cli; do
	ip netns add $ns
	ip -n $ns link set lo up
done
ip link add eth0 netns srv type veth peer name eth0 netns cli
ip -n srv addr add $srv/24 dev eth0
ip -n cli addr add $cli/24 dev eth0
ip -n srv link set eth0 up
ip -n cli link set eth0 up

phc=
if [ -e /sys/module/veth/parameters/test_phc_skew_ppb ]; then
	echo $skew_ppb >/sys/module/veth/parameters/test_phc_skew_ppb
	echo $delay_ns >/sys/module/veth/parameters/test_phc_delay_ns
	echo $jitter_ns >/sys/module/veth/parameters/test_phc_jitter_ns
	stamp='from nsight_record import nic; print("hwtstamp filter", nic.set_hwtstamp_filter("eth0", 1))'
	$in_srv env PYTHONPATH="$top/tools/nsight-record" /usr/bin/python3 -B -c "$stamp"
	$in_cli env PYTHONPATH="$top/tools/nsight-record" /usr/bin/python3 -B -c "$stamp"
	phc="--phc /dev/ptp0"
	say "stamps of $(cat /sys/class/ptp/ptp0/clock_name): skew $skew_ppb ppb, $delay_ns to $((delay_ns + jitter_ns)) ns before the driver"
fi

$in_srv taskset -c 1 setpriv --reuid nobody --regid nogroup --clear-groups \
	memcached -l $srv -p 11211 -U 11211 -t 1 -m 64 -I 2m &
server=$!
pids="$pids $server"
sleep 2

# The events of nsight-record's mode tracepoints, the hand-off to the application, and the clock.
events=
for e in sched:sched_switch sched:sched_waking sched:sched_wakeup sched:sched_wakeup_new sched:sched_migrate_task \
	sched:sched_process_fork sched:sched_process_exec sched:sched_process_exit \
	irq:irq_handler_entry irq:irq_handler_exit irq:softirq_entry irq:softirq_exit \
	irq_vectors:local_timer_entry irq_vectors:local_timer_exit irq_vectors:reschedule_entry \
	irq_vectors:reschedule_exit irq_vectors:call_function_entry irq_vectors:call_function_exit \
	irq_vectors:call_function_single_entry irq_vectors:call_function_single_exit \
	napi:napi_poll net:netif_receive_skb net:net_dev_start_xmit net:net_dev_xmit \
	timer:hrtimer_expire_entry timer:hrtimer_expire_exit timer:timer_expire_entry timer:timer_expire_exit \
	exceptions:page_fault_user exceptions:page_fault_kernel power:cpu_idle \
	sock:inet_sock_set_state sock:sock_data_queued sock:sock_data_read timekeeping:timekeeping_update; do
	if [ -d "$tracing/events/$(echo $e | tr : /)" ]; then events="$events -e $e"; else say "this kernel has no $e"; fi
done
events="$events -e raw_syscalls:sys_enter --exclude-perf -e raw_syscalls:sys_exit --exclude-perf"

# perf starts this when it records: slewed by 100 ppm, later stepped by 5 s.
third=$((seconds / 3))
during="sleep $third; busybox adjtimex -f 6553600; sleep $third; date -s @\$((\$(date +%s) + 5)); sleep $third"

# record NAME PERF OPTIONS...
record() {
	name=$1 program=$2
	shift 2
	folder=$scratch/$name
	mkdir "$folder"
	load=$top/tools/nsight-demo/load/build
	"$top/tools/nsight-record/clock/nsight-clock" -o "$folder/clock.tsv" $phc 2>"$folder/clock.log" &
	clock=$!
	$in_cli "$load/nsight-load" -s $srv -p 11211 -P memcached -C 0 -c 4 -r "$rate" -d 600 -l "$folder/load.tsv" \
		2>"$folder/load.log" &
	tcp=$!
	$in_cli "$load/nsight-load" -s $srv -p 11211 -P memcached-udp -C 0 -c 1 -r "$((rate / 5))" -d 600 \
		-l "$folder/load-udp.tsv" 2>"$folder/load-udp.log" &
	udp=$!
	"$load/hog" -C 1 -b 20000 -i 80000 -l "$folder/hog.tsv" 2>"$folder/hog.log" &
	hog=$!
	pids="$server $clock $tcp $udp $hog"
	sleep 3
	now >"$folder/start.json"
	"$program" record -q -a -m 4096 --synth task --no-buildid --no-buildid-cache -o "$folder/perf.data" "$@" $events \
		-- sh -c "$during" >"$folder/perf.log" 2>&1 || { cat "$folder/perf.log"; return 1; }
	now >"$folder/stop.json"
	$in_srv ss -tunaeH >"$folder/sockets-srv.txt"
	$in_cli ss -tunaeH >"$folder/sockets-cli.txt"
	busybox adjtimex -f 0 >/dev/null
	# TERM ends the logs whole.
	kill $hog $tcp $udp
	wait $hog $tcp $udp || :
	kill -INT $clock
	wait $clock || :
	pids=$server
	say "$name: $(wc -c <"$folder/perf.data") bytes of perf.data, $(grep -c -v '^[#i]' "$folder/load.tsv") TCP and" \
		"$(grep -c -v '^[#i]' "$folder/load-udp.tsv") UDP requests sent"
	tail -n 2 "$folder/load.log"
}

# What nsight-record adds to perf's command line in mode intel-pt, with this perf and with the distribution's.
asked='from nsight_record import perf; print(*perf.clock_map_options())'
clock_map=$(PATH="$(dirname "$perf"):$PATH" python "$asked")
stock=$(python "$asked")
say "nsight-record: patched perf: '$clock_map', the distribution's: '$stock'"
[ "$clock_map" = --clock-map ] && [ -z "$stock" ] || exit 1

say "perf test: $(dirname "$perf")"
(cd "$(dirname "$perf")/../src/tools/perf" && PATH="$(dirname "$perf"):$PATH" perf test -v "Record and convert") >"$scratch/perf-test.log" 2>&1 ||
	{ cat "$scratch/perf-test.log"; exit 1; }
# perf test ends with 0 although a test failed.
if ! grep -q ': Ok$' "$scratch/perf-test.log" || grep -q ': Skip\|FAILED' "$scratch/perf-test.log"; then
	cat "$scratch/perf-test.log"
	exit 1
fi

record map "$perf" $clock_map
record mono perf -k CLOCK_MONOTONIC

python 'import json, os, sys
from nsight_record import host
facts = {"host": host.describe(), "syscalls": host.syscall_names(), "server_pid": int(sys.argv[1]),
         "netns": {n: os.stat(f"/run/netns/{n}").st_ino for n in ("srv", "cli")},
         "phc_truth": sys.argv[5] and dict(zip(("skew_ppb", "delay_ns", "jitter_ns"), map(int, sys.argv[2:5])))}
print(json.dumps(facts, indent=1))' $server $skew_ppb $delay_ns $jitter_ns "$phc" >"$scratch/facts.json"
nics='import json; from nsight_record import nic; print(json.dumps(nic.describe_all(), indent=1))'
$in_srv env PYTHONPATH="$top/tools/nsight-record" /usr/bin/python3 -B -c "$nics" >"$scratch/nics-srv.json"
$in_cli env PYTHONPATH="$top/tools/nsight-record" /usr/bin/python3 -B -c "$nics" >"$scratch/nics-cli.json"
ps -eLo pid,tid,comm,args >"$scratch/processes.txt" || :
cat /proc/kallsyms >"$scratch/kallsyms"
cp -r "$scratch"/. "$out"

say "recorded"
