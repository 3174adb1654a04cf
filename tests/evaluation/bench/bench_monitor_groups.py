#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-monitor adds to one datagram: with and without the program for freed packets (kfree_skb), and with groups.

    .venv/bin/python tests/evaluation/bench/bench_monitor_groups.py [--rounds N] [--ports N] [--other PROGRAM]

One process on core 1 sends datagrams over loopback and reads them; the loader runs on core 0. Three loads: one port; many ports in
turn (with --group-by port, each port is a group); and datagrams that the kernel drops, since their socket is full.
In each round, every load meets every monitor once, in random order. A figure is the first decile of 60 batches, as other work on
the machine only adds time; ns and x are medians over the rounds of the difference and the ratio to no monitor in the same round,
with the quartiles of x. least: the smallest figure of all rounds minus the smallest one without a monitor, which other work on the
machine changes least. --other also measures another build of nsight-histograms, as of an earlier commit.

Needs root. Exit codes: 0 done, 1 the monitor did not start, 2 usage, 4 not root.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[3] / "tools/nsight-monitor/histograms/nsight-histograms"
BATCHES, BATCH = 60, 300
NOTHING, PLAIN = "nothing", "without kfree_skb"
#: All default stages but qdisc, the one that needs kfree_skb.
STAGES = (
    "ip-start,tcp-start,tcp-socket-enqueued,udp-socket-enqueued,tcp-socket-read,udp-socket-read,"
    "handoff-to-read,run-queue,head-of-line,request,tcp-driver"
)
MONITORS: dict[str, list[str]] = {
    PLAIN: ["--stages", STAGES],
    "with kfree_skb (default)": [],
    "default, --group-by port": ["--group-by", "port", "--groups", "4096"],
    "default, --group-by comm": ["--group-by", "comm"],
    "default, another --port": ["--port", "9"],
}
Load = Callable[[], None]


@contextmanager
def watched(command: list[str] | None) -> Iterator[None]:
    """The loader has attached its programs; with None there is none."""
    if command is None:
        yield
        return
    argv = ["taskset", "-c", "0", *command, "--interval-ms", "1000"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    if not process.stdout.readline():
        sys.exit(process.stderr.read().decode() or 1)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def itself() -> socket.socket:
    """A socket whose datagrams come back to it."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    s.connect(s.getsockname())
    return s


def exchanged(n: int) -> Load:
    """A batch over ``n`` ports in turn."""
    sockets = [itself() for _ in range(n)]
    state = {"at": 0}

    def batch() -> None:
        at = state["at"]
        for i in range(at, at + BATCH):
            s = sockets[i % n]
            s.send(b"x")
            s.recv(1)
        state["at"] = (at + BATCH) % n

    return batch


def dropped() -> Load:
    """A batch to a socket that is full."""
    s = itself()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def batch() -> None:
        for _ in range(BATCH):
            s.send(b"x")

    for _ in range(10):
        batch()
    return batch


def ns_each(batch: Load) -> float:
    """First decile of the ns of one datagram."""
    batch()
    found = []
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        batch()
        found.append((time.perf_counter_ns() - begin) / BATCH)
    return statistics.quantiles(found, n=10)[0]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25, help="default 25")
    parser.add_argument("--ports", type=int, default=1000, help="of the load with many ports (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default 1)")
    parser.add_argument("--other", metavar="PROGRAM", help="another build of nsight-histograms")
    args = parser.parse_args()
    if os.geteuid():
        print("error: BPF programs need root\nhint: sudo .venv/bin/python " + sys.argv[0], file=sys.stderr)
        return 4
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    draw = random.Random(args.seed)
    loads = {"one port": exchanged(1), f"{args.ports} ports": exchanged(args.ports), "dropped": dropped()}
    commands: dict[str, list[str] | None] = {NOTHING: None}
    for name, options in MONITORS.items():
        commands[name] = [str(PROGRAM), *options]
        if args.other:
            commands[f"{name}, other"] = [args.other, *options]
    found: dict[tuple[str, str], list[float]] = {(load, name): [] for load in loads for name in commands}
    for _ in range(args.rounds):
        for name in draw.sample(list(commands), len(commands)):
            with watched(commands[name]):
                for load, batch in loads.items():
                    found[load, name].append(ns_each(batch))
    print(f"{args.rounds} rounds; ns a datagram, what the monitor adds, ratio (quartiles)")
    for load in loads:
        bare = found[load, NOTHING]
        print(f"\n{load}: {statistics.median(bare):.0f} ns without a monitor")
        for name in list(commands)[1:]:
            each = found[load, name]
            added = statistics.median(a - b for a, b in zip(each, bare, strict=True))
            ratios = [a / b for a, b in zip(each, bare, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            least = min(each) - min(bare)
            print(
                f"  {name:32} +{added:5.0f} ns  x{middle:.3f} ({low:.3f}-{high:.3f})  least +{least:5.0f} ns"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
