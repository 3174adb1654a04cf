#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-monitor and netstacklat add to a datagram and to a TCP message, one beside the other, in instructions.

    tests/machinery/guest/run --kernel newest --icount -- \\
        .venv/bin/python tests/evaluation/monitor/beside_netstacklat.py --netstacklat PROGRAM

netstacklat needs function probes, which a locked-down kernel lacks. So a guest with Debian's stock kernel runs both; with --icount its clock
counts instructions, so the figures have no noise and no relation to the time that an instruction takes. Without --icount, figures are ns.

One process sends datagrams to itself over loopback, and TCP messages there and back. netstacklat needs the kernel's receive timestamps, whose cost
is its own. "its stages" are those of netstacklat that have tracepoints: without udp-start, which needs a function probe, or else a program of the
root control group; both are measured, too. Each figure is the smallest of the batches, minus that without a monitor. Exit codes: 0 at its stages nsight-monitor adds less to both, 1 it does not, or a program
failed, 2 usage, 4 not root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tools/nsight-monitor/histograms/nsight-histograms"
STAGES = "ip-start,tcp-start,tcp-socket-enqueued,udp-socket-enqueued,tcp-socket-read,udp-socket-read"
BATCH = 100
#: SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE
SO_TIMESTAMPING, RX_SOFTWARE = 37, 1 << 3 | 1 << 4
NOTHING, STAMPS = "nothing", "receive timestamps alone"
UDP_START = {
    "its stages and udp-start, by function probes": (),
    "the same by a program of the root control group": ("--no-probes",),
}
NETSTACKLAT, OURS, ALL = "netstacklat", "nsight-monitor, its stages", "nsight-monitor, all default stages"


@contextlib.contextmanager
def stamps() -> Iterator[None]:
    """The kernel timestamps every packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE)
        yield


@contextlib.contextmanager
def ours(*options: str) -> Iterator[None]:
    """The loader has attached its programs, and sleeps."""
    argv = [str(PROGRAM), "--interval-ms", "3600000", *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    if not process.stdout.readline():
        sys.exit(1)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@contextlib.contextmanager
def running(path: Path) -> Iterator[None]:
    """netstacklat, once it has attached its programs."""
    process = subprocess.Popen([str(path), "-r", "3600"], stdout=subprocess.DEVNULL)
    try:
        while not any("link_id" in p.read_text() for p in Path(f"/proc/{process.pid}/fdinfo").iterdir()):
            if process.poll() is not None:
                sys.exit(1)
            time.sleep(0.1)
        time.sleep(1)  # the other programs
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def datagrams() -> Callable[[], None]:
    """A batch."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    s.connect(s.getsockname())

    def batch() -> None:
        for _ in range(BATCH):
            s.send(b"x")
            s.recv(1)

    return batch


def segments() -> Callable[[], None]:
    """A batch of TCP messages, half of them in each direction."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
    for s in (one, other):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def batch() -> None:
        for _ in range(BATCH // 2):
            one.send(b"x")
            other.recv(1)
            other.send(b"x")
            one.recv(1)

    return batch


def least(batch: Callable[[], None], batches: int) -> float:
    """The smallest figure of one message; timer interrupts only add to others."""
    batch()
    found = []
    for _ in range(batches):
        begin = time.perf_counter_ns()
        batch()
        found.append((time.perf_counter_ns() - begin) / BATCH)
    return min(found)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--netstacklat", type=Path, metavar="PROGRAM", help="that of bpf-examples or bcc")
    parser.add_argument("--batches", type=int, default=20, help="of 100 messages each (default 20)")
    args = parser.parse_args()
    if os.geteuid():
        print("error: BPF programs need root\nhint: run it in a guest, as --help says", file=sys.stderr)
        return 4
    monitors: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        NOTHING: contextlib.nullcontext,
        STAMPS: stamps,
        OURS: lambda: ours("--stages", STAGES),
        ALL: ours,
        **{name: partial(ours, "--stages", f"{STAGES},udp-start", *how) for name, how in UDP_START.items()},
    }
    if args.netstacklat:
        monitors[NETSTACKLAT] = lambda: running(args.netstacklat)
    loads = {"datagram": datagrams(), "TCP message": segments()}
    found: dict[tuple[str, str], float] = {}
    for monitor, watch in monitors.items():
        with watch():
            for load, batch in loads.items():
                found[monitor, load] = least(batch, args.batches)
    for load in loads:
        print(f"{load}: {found[NOTHING, load]:,.0f} without a monitor")
        for monitor in [m for m in monitors if m != NOTHING]:
            print(f"  {monitor:48} +{found[monitor, load] - found[NOTHING, load]:,.0f}")
    if not args.netstacklat:
        return 0
    return 0 if all(found[OURS, load] < found[NETSTACKLAT, load] for load in loads) else 1


if __name__ == "__main__":
    sys.exit(main())
