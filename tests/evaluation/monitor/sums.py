#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compare nsight-monitor's sums with nstat, after 10^6 packets.

    .venv/bin/python tests/evaluation/monitor/sums.py [--packets N]        make monitor-sums

Datagrams, and a tenth as many TCP messages in both directions, cross a veth pair between namespaces, over IPv4. The monitor's counts in the
server's namespace are compared with the kernel's counters of that namespace. Exit codes: 0 all are equal, 1 one is not, 2 usage,
4 not root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [
    str(ROOT / "tests"), str(ROOT / "tests/monitor"), str(ROOT), str(ROOT / "tools/nsight-monitor"), str(ROOT / "tools/nsight-demo")
]  # fmt: skip

from machinery.harness import private  # noqa: E402
from machinery.testbed.ports import reserved  # noqa: E402
from nsight_demo.processes import BedError, run  # noqa: E402

BURST = 50  # datagrams, which fit into the socket


def nstat(netns: str) -> dict[str, int]:
    """The kernel's counters of a namespace since its creation."""
    text = run(["nsenter", f"--net=/run/netns/{netns}", "--", "nstat", "-a", "-s", "-z", "-j"])
    found: dict[str, int] = json.loads(text)["kernel"]
    return found


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--packets", type=int, default=1_000_000, metavar="N", help="datagrams (default: 10^6)"
    )
    args = parser.parse_args()
    if os.geteuid():
        print("error: BPF programs and namespaces need root\nhint: sudo make monitor-sums", file=sys.stderr)
        return 4
    private.mounts()
    from monitored import Watch, connected, inode, link  # what tests use; pytest comes with it

    bursts = -(-args.packets // BURST)
    try:
        with link("sums") as veth, reserved(2) as (udp, tcp):
            before = nstat(veth.server)
            with Watch("--netns", inode(veth.server)) as watch:
                with connected(veth, False, False, udp) as (client, server):
                    for _ in range(bursts):
                        for _ in range(BURST):
                            client.send(b"x" * 50)
                        for _ in range(BURST):
                            server.recv(64)
                with connected(veth, True, False, tcp) as (client, server):
                    for _ in range(bursts * BURST // 10):
                        client.send(b"x" * 50)
                        server.send(server.recv(64))
                        client.recv(64)
            new = {name: n - before.get(name, 0) for name, n in nstat(veth.server).items()}
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # One thread sends and reads: a read without a hand-off is one whose hand-off was in a run that the kernel skipped.
    skipped = watch.result.counts["read_without_handoff"]
    rows = [
        ("ip-start and packets without a timestamp", watch.n("ip-start") + without(watch.result.counts),
         "IpInReceives + Ip6InReceives", new["IpInReceives"] + new["Ip6InReceives"]),
        ("udp-socket-enqueued, hand-offs skipped", watch.n("udp-socket-enqueued") + skipped, "UdpInDatagrams", new["UdpInDatagrams"]),
        ("udp-socket-read, hand-offs skipped", watch.n("udp-socket-read") + skipped, "UdpInDatagrams", new["UdpInDatagrams"]),
        ("tcp-socket-enqueued", watch.n("tcp-socket-enqueued"), "messages sent", bursts * BURST // 10),
        ("tcp-socket-read", watch.n("tcp-socket-read"), "messages sent", bursts * BURST // 10),
        ("request", watch.n("request"), "replies sent", bursts * BURST // 10),
        ("hand-offs skipped beyond the kernel's count", max(0, skipped - watch.result.missed_by.get("on_sk_data_ready", 0)), "", 0),
        ("UdpRcvbufErrors", new["UdpRcvbufErrors"], "", 0),
    ]  # fmt: skip
    for what, ours, of, theirs in rows:
        print(f"{'equal ' if ours == theirs else 'DIFFER'}  {what:44} {ours:>10,}  {of:28} {theirs:>10,}")
    return 0 if all(ours == theirs for _, ours, _, theirs in rows) else 1


def without(counts: dict[str, int]) -> int:
    """Packets without ip-start, because they had no timestamp."""
    return sum(n for name, n in counts.items() if name.startswith("no_stamp"))


if __name__ == "__main__":
    sys.exit(main())
