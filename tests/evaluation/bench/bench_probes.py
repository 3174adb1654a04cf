#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Overhead of the message probes: closed-loop memcached throughput with and without them, interleaved.

The peer is the same bpftrace with probes at the same places that only count. Prints requests/s of
each round, ratios of medians, and the reader's CPU time per record.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from machinery.testbed.bed import Testbed  # noqa: E402
from nsight_demo.logs import read_load  # noqa: E402

ROOT = HERE.parents[2]
ROUNDS, SECONDS = 3, 2
STARTED = re.compile(rb"^(#nsight|up)", re.MULTILINE)
COUNTS = (
    "tracepoint:net:netif_receive_skb,tracepoint:net:net_dev_start_xmit,tracepoint:sock:sk_data_ready,"
    "tracepoint:sock:sock_recv_length,tracepoint:sock:sock_send_length { @n = count(); }"
)


def probes(argv: list[str], directory: Path) -> subprocess.Popen[bytes]:
    """bpftrace on core 0, once it is attached."""
    out = directory / "out"
    with open(out, "wb") as stdout, open(directory / "err", "wb") as stderr:
        child = subprocess.Popen(
            ["taskset", "-c", "0", "bpftrace", *argv],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "BPFTRACE_PERF_RB_PAGES": "4096"},
        )
    deadline = time.monotonic() + 30
    # The output of BEGIN comes when all probes are attached; bpftrace's own line comes before.
    while not STARTED.search(out.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return child


def throughput(bed: Testbed, server: object, directory: Path) -> float:
    """Requests per second of four connections in closed loop."""
    log = directory / "load.tsv"
    bed.start_load(server, ["-c", "4", "-d", str(SECONDS)], log).wait(60)
    load = read_load(log)
    return len(load) / SECONDS


def main() -> int:
    """Entry point."""
    if os.geteuid():
        print("error: the probes need root\nhint: sudo make bench", file=sys.stderr)
        return 4
    script = ROOT / "bpftrace" / "nsight-record.bt"
    rates: dict[str, list[float]] = defaultdict(list)
    cpu, records = 0.0, 0
    with tempfile.TemporaryDirectory() as name, Testbed() as bed:
        directory = Path(name)
        server = bed.start_server("memcached")
        kinds = {
            "no probes": None,
            "count only": ["-e", 'BEGIN { printf("up\\n"); } ' + COUNTS],
            "nsight-record.bt": [str(script), str(server.port)],
        }
        for _ in range(ROUNDS):
            for kind, argv in kinds.items():
                child = probes(argv, directory) if argv else None
                rates[kind].append(throughput(bed, server, directory))
                if child:
                    child.send_signal(2)
                    _, _, usage = os.wait4(child.pid, 0)
                    child.returncode = 0
                    if kind == "nsight-record.bt":
                        cpu += usage.ru_utime + usage.ru_stime
                        records += (directory / "out").read_bytes().count(b"\n")
    base = statistics.median(rates["no probes"])
    for kind, values in rates.items():
        shown = " ".join(f"{v:.0f}" for v in values)
        print(
            f"{kind:18} requests/s {shown}  median ratio to no probes {statistics.median(values) / base:.2f}"
        )
    print(f"reader: {cpu / max(records, 1) * 1e6:.1f} us CPU a line (start-up included), {records} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
