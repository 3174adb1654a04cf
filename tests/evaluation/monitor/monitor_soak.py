#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run nsight-monitor until 10^8 messages came, as many as in 24 hours at 1,157 a second, and check sums, memory and intervals.

    .venv/bin/python tests/evaluation/monitor/monitor_soak.py                     make monitor-soak
    .venv/bin/python tests/evaluation/monitor/monitor_soak.py --messages 1e6      a short run

Datagrams cross a veth pair between namespaces, as fast as one process sends and reads them, a thousand to each port. The monitor groups
by port and has 64 groups, so 10^5 groups are offered, and groups end all the time. Each line: seconds, messages so far, private memory of
nsight-monitor and nsight-histograms in kB, their processor seconds, groups that ended. At the end:

- sums over all groups and what ended equal nstat's, with what is counted as not measured: also hand-offs in runs that the kernel skipped. One
  thread sends and reads, so each read without a hand-off is such a one, and there are no more of them than skipped runs;
- memory grew by less than 4 MB since a quarter of the messages;
- each second had its line: the intervals neither drift nor miss one.

Exit codes: 0 all is so, 1 something is not, or a program failed, 2 usage, 4 not root, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [
    str(HERE),
    str(ROOT / "tests/evaluation/bench"),
    str(ROOT / "tests"),
    str(ROOT / "tests/monitor"),
]
sys.path[:0] = [str(ROOT), str(ROOT / "tools/nsight-monitor"), str(ROOT / "tools/nsight-demo")]

from machinery.harness import private  # noqa: E402
from nsight_demo.processes import BedError, run  # noqa: E402
from soak import MOST_GROWTH_KB, status  # noqa: E402
from sums import BURST, nstat  # noqa: E402

TOOL = ROOT / "tools/nsight-monitor/nsight-monitor"
EACH_PORT, FIRST_PORT, PORTS = 1_000, 1_024, 64_000
INTERVAL_S, PRINT_S = 1, 10


class Lines:
    """Reads the monitor's lines: the last one, and when each was made."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.last: dict[str, Any] = {}
        self.monotonic_ns: list[int] = []
        self._process = process
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            row = json.loads(line)
            if "counts" in row:
                self.last = row
                if not row["last"]:
                    self.monotonic_ns.append(row["monotonic_ns"])

    def end(self) -> None:
        """All lines were read."""
        self._thread.join()

    def n(self, stage: str) -> int:
        """Latencies of a stage in all groups, including groups that ended."""
        rows = [*self.last["histograms"], *self.last["ended"]]
        return sum(sum(row["n"].values()) for row in rows if row["stage"] == stage)


@contextlib.contextmanager
def monitoring(netns: str) -> Iterator[tuple[subprocess.Popen[str], Lines]]:
    """Until the end of the block; then all lines were read."""
    options = [
        "--json",
        "--interval",
        str(INTERVAL_S),
        "--netns",
        netns,
        "--group-by",
        "port",
        "--group-idle",
        "1",
    ]
    process = subprocess.Popen([sys.executable, str(TOOL), *options], stdout=subprocess.PIPE, text=True)
    lines = Lines(process)
    try:
        while not lines.last:
            if process.poll() is not None:
                raise BedError("nsight-monitor ended")
            time.sleep(0.05)
        yield process, lines
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        lines.end()


def messages(veth: Any, number: int) -> None:
    """A thousand to one port."""
    from monitored import connected

    with connected(veth, False, False, FIRST_PORT + number % PORTS) as (client, server):
        for _ in range(EACH_PORT // BURST):
            for _ in range(BURST):
                client.send(b"x" * 50)
            for _ in range(BURST):
                server.recv(64)


def memory(process: subprocess.Popen[str]) -> tuple[list[int], float]:
    """Private memory in kB and processor seconds, of the monitor and its child."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = [status(int(pid)) for pid in [process.pid, *children]]
    return [kb for kb, _ in found], sum(seconds for _, seconds in found)


def soak(veth: Any, n_ports: int) -> tuple[Lines, list[int]]:
    """The lines, and the memory after each tenth of the messages."""
    kept: list[int] = []
    with monitoring(veth.server) as (process, lines):
        began = printed = time.monotonic()
        for number in range(1, n_ports + 1):
            messages(veth, number)
            if number * 10 // n_ports > len(kept):
                kept.append(sum(memory(process)[0]))
            if time.monotonic() - printed >= PRINT_S or number == n_ports:
                printed = time.monotonic()
                kb, seconds = memory(process)
                print(
                    f"{printed - began:6.0f} s  {number * EACH_PORT:>13,} messages  {' '.join(f'{n:>7}' for n in kb)} kB  "
                    f"{seconds:7.1f} s of processors  {lines.last['counts']['groups_ended']:>7,} groups ended",
                    flush=True,
                )
    return lines, kept


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=float, default=1e8, help="(default 1e8)")
    args = parser.parse_args()
    if os.geteuid():
        print("error: BPF programs and namespaces need root\nhint: sudo make monitor-soak", file=sys.stderr)
        return 4
    private.mounts()
    from monitored import link  # what tests use; pytest comes with it

    n_ports = max(10, -(-int(args.messages) // EACH_PORT))
    sent = n_ports * EACH_PORT
    try:
        with link("soak") as veth:
            for netns in (veth.server, veth.client):
                # Its own packets would come at any time, also before the monitor begins.
                run(
                    [
                        "nsenter",
                        f"--net=/run/netns/{netns}",
                        "--",
                        "sysctl",
                        "-qw",
                        "net.ipv6.conf.all.disable_ipv6=1",
                    ]
                )
            before = nstat(veth.server)
            lines, kept = soak(veth, n_ports)
            new = {name: n - before.get(name, 0) for name, n in nstat(veth.server).items()}
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    counts = lines.last["counts"]
    without = sum(n for name, n in counts.items() if name.startswith("no_stamp"))
    skipped, by = counts["read_without_handoff"], lines.last["missed_by"]
    enqueued = lines.n("udp-socket-enqueued") + counts["handoff_without_arrival_udp"] + skipped
    read = lines.n("udp-socket-read") + counts["read_without_arrival"] + skipped
    at = lines.monotonic_ns
    drift_s = (at[-1] - at[0]) / 1e9 - (len(at) - 1) * INTERVAL_S
    growth = kept[-1] - kept[len(kept) // 4]
    checks = [
        ("udp-socket-enqueued, without arrival, skipped", enqueued == sent, enqueued),
        ("udp-socket-read, without arrival, skipped", read == sent == new["UdpInDatagrams"], read),
        ("ip-start, and packets without a timestamp", lines.n("ip-start") + without == new["IpInReceives"] + new["Ip6InReceives"],
         lines.n("ip-start") + without),
        ("skipped hand-offs, of all skipped ones", skipped <= by.get("on_sk_data_ready", 0), skipped),
        ("kB of growth", growth < MOST_GROWTH_KB, growth),
        ("intervals", True, len(at)),
        ("s of drift over all of them", abs(drift_s) < INTERVAL_S / 2, round(drift_s, 3)),
    ]  # fmt: skip
    for what, is_so, number in checks:
        print(f"{'ok    ' if is_so else 'MISSED'}  {what:46} {number:>14,}")
    print("runs left out by the kernel:", ", ".join(f"{name} {n:,}" for name, n in by.items()) or "none")
    print("counts:", ", ".join(f"{name} {n:,}" for name, n in counts.items() if n))
    print("nstat:", ", ".join(f"{name} {n:,}" for name, n in new.items() if n))
    return 0 if all(is_so for _, is_so, _ in checks) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
