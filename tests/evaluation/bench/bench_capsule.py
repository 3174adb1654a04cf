#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Overhead of nsight-capsule: round trips and bulk TCP through veth, bridge and VXLAN, interleaved with runs without it, and ns per point.

Every round measures each setting once, in a new order. Prints medians, their ratios to runs without nsight-capsule, and the
programs' run time as measured by the kernel (including the kernel's measurement overhead, about 60 ns per run). Then what a point takes for
one packet without that overhead, when the kernel runs it many times in a row (BPF_PROG_TEST_RUN): the goals are 30 ns and 150 ns.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / part) for part in (".", "tests", "tools/nsight-report")]

from capsule.bed import V4, Bed  # noqa: E402
from capsule.stamping import Stamping  # noqa: E402
from capsule.test_leaving_live import ipv4, v4_segment  # noqa: E402
from capsule.test_removal_live import loaded  # noqa: E402
from machinery.harness import private  # noqa: E402
from nsight_report.hops.records import ANNOTATED  # noqa: E402

SETTINGS = ("nothing", "0", "1/100", "1/16", "1")
_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
BPFTOOL = next((p for p in ("/usr/sbin/bpftool", "/usr/bin/bpftool") if Path(p).exists()), "bpftool")
BULK = 1 << 16
_SESSION, _TURNS, _REPEAT = 5, 5, 300_000


def echo(server: socket.socket, leave: threading.Event) -> None:
    """Echo until the peer closes the connection."""
    server.settimeout(0.2)
    while not leave.is_set():
        try:
            data = server.recv(2048)
        except TimeoutError:
            continue
        if not data:
            return
        server.send(data)


def round_trips(client: socket.socket, seconds: float) -> list[int]:
    """Latencies in ns of a closed loop of 100 bytes."""
    data, made, end = b"x" * 100, [], time.monotonic() + seconds
    clock = time.perf_counter_ns
    while time.monotonic() < end:
        began = clock()
        client.send(data)
        client.recv(2048)
        made.append(clock() - began)
    return made


def bulk(client: socket.socket, server: socket.socket, seconds: float) -> float:
    """Bytes read per second."""
    leave = threading.Event()
    data = b"y" * BULK

    def send() -> None:
        while not leave.is_set():
            client.sendall(data)
        client.close()

    sender = threading.Thread(target=send)
    began = time.monotonic()
    sender.start()
    n, buffer = 0, bytearray(1 << 20)
    while time.monotonic() < began + seconds:
        n += server.recv_into(buffer)
    elapsed = time.monotonic() - began
    leave.set()
    while server.recv_into(buffer):
        pass
    sender.join()
    return n / elapsed


def measure(bed: Bed, seconds: float) -> dict[str, float]:
    """One round of one setting."""
    leave, made = threading.Event(), {}
    client, server = bed.connection(socket.AF_INET, 7101)
    worker = threading.Thread(target=echo, args=(server, leave))
    worker.start()
    made |= distribution("TCP", round_trips(client, seconds))
    client.close()
    worker.join()
    client, server = bed.datagrams(socket.AF_INET, 7102)
    server.connect(bed.in_place("a", client.getsockname))
    worker = threading.Thread(target=echo, args=(server, leave))
    worker.start()
    made |= distribution("UDP", round_trips(client, seconds))
    leave.set()
    worker.join()
    made["bulk TCP, MB/s"] = bulk(*bed.connection(socket.AF_INET, 7103), seconds) / 1e6
    return made


def distribution(name: str, ns: list[int]) -> dict[str, float]:
    """Median and 99.9th percentile in us."""
    ns.sort()
    return {
        f"{name} round trip p50, us": ns[len(ns) // 2] / 1e3,
        f"{name} round trip p99.9, us": ns[len(ns) * 999 // 1000] / 1e3,
    }


@contextmanager
def stamping(bed: Bed, rate: str) -> Iterator[None]:
    """nsight-capsule at this rate, or nothing."""
    if rate == "nothing":
        yield
        return
    places = [word for place in ("a", "h1", "h2", "b") for word in ("--netns", bed.name(place))]
    with (
        tempfile.TemporaryDirectory() as directory,
        Stamping(Path(directory, "out"), *places, "--rate", rate) as run,
    ):
        yield
        run.end()


@contextmanager
def counted() -> Iterator[None]:
    """Let the kernel measure the run time of BPF programs."""
    before = _STATS.read_text()
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text(before)


def run_times(bed: Bed, rate: str, traffic: Callable[[], object]) -> dict[str, tuple[int, float]]:
    """By program name: runs, and ns per run."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    with counted(), stamping(bed, rate):
        before = {p["id"] for p in _programs()} if rate == "nothing" else set()
        traffic()
        for p in _programs():
            if p["id"] not in before and p.get("name") in ("at_point", "at_socket"):
                found[p["name"]][0] += p.get("run_cnt", 0)
                found[p["name"]][1] += p.get("run_time_ns", 0)
    return {name: (n, ns / n) for name, (n, ns) in found.items() if n}


def _datagram() -> bytes:
    """An IPv4 datagram of 100 bytes."""
    head = struct.pack(">BBHHHBBH", 0x45, 0, 128, 7, 0x4000, 64, socket.IPPROTO_UDP, 0)
    return (
        b"\x08\x00"
        + head
        + b"".join(map(socket.inet_aton, V4))
        + struct.pack(">HHHH", 9, 7, 108, 0)
        + bytes(100)
    )


def packet_costs(bed: Bed, turns: int = _TURNS, repeat: int = _REPEAT) -> dict[str, int]:
    """ns of the dearer program of a point, by packet; the least of some turns. Rate 0: a capsule is already in the packet, or none."""
    plain = struct.pack(">HHIIBBHHH", 9, 7, 1, 1, 5 << 4, 0x18, 512, 0, 0) + bytes(100)
    packets = {
        "datagram, not chosen": _datagram(),
        "segment, not chosen": ipv4(plain, 0x4000),
        "segment, stamped": v4_segment(_SESSION),
        "segment, stamped at other classes of points": v4_segment(_SESSION, points=ANNOTATED << 10),
    }
    found: dict[str, list[int]] = defaultdict(list)
    with _programs_of(bed, "h1", "va") as (points, frame):
        for name in list(packets) * turns:
            frame.write_bytes(bytes(12) + packets[name])
            found[name].append(max(_ns_of(program, frame, repeat) for program in points))
    # The dearer program is that of ingress, where the segment has its destination, and keeps its capsule.
    with _programs_of(bed, "b", "eth0") as (points, frame):
        frame.write_bytes(bytes(12) + packets["segment, stamped"])
        for _ in range(turns):
            found["segment, arrives"].append(max(_ns_of(program, frame, repeat) for program in points))
    return {name: min(ns) for name, ns in found.items()}


@contextmanager
def _programs_of(bed: Bed, place: str, device: str) -> Iterator[tuple[list[str], Path]]:
    """Programs of a point, and where to write the packet for them."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "out")
        point = f"{bed.name(place)}:{device}"
        with Stamping(out, "--point", point, "--rate", "0", "--session", str(_SESSION)) as run:
            ours = loaded(run.child())
            yield (
                [str(p["id"]) for p in _programs() if p["id"] in ours and p.get("name") == "at_point"],
                Path(directory, "frame"),
            )
            run.end()


def _ns_of(program: str, frame: Path, repeat: int) -> int:
    words = [BPFTOOL, "-j", "prog", "run", "id", program, "data_in", str(frame), "repeat", str(repeat)]
    return int(
        json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["duration"]
    )


def _programs() -> list[dict[str, object]]:
    listed = json.loads(
        subprocess.run([BPFTOOL, "-j", "prog", "show"], capture_output=True, text=True, check=True).stdout
    )
    return list(listed)


def main() -> int:
    """Exit code 0: it only measures, and has no goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="of each measurement (default %(default)s)"
    )
    parser.add_argument(
        "--points",
        action="store_true",
        help="only what a point takes, in few runs: for guests whose clock counts instructions (tests/machinery/guest/run --icount)",
    )
    args = parser.parse_args()
    private.mounts()
    bed, results = Bed(), defaultdict(lambda: defaultdict(list))
    bed.clear()
    try:
        bed.build()
        if args.points:
            for name, ns in packet_costs(bed, 3, 2_000).items():
                print(f"a point, {name}: {ns} ns")
            return 0
        measure(bed, 0.2)
        for number in range(args.rounds):
            for rate in random.sample(SETTINGS, len(SETTINGS)):
                with stamping(bed, rate):
                    for name, value in measure(bed, args.seconds).items():
                        results[name][rate].append(value)
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        print(f"{'':28}" + "".join(f"{rate:>18}" for rate in SETTINGS))
        for name, of in results.items():
            base = statistics.median(of["nothing"])
            medians = {rate: statistics.median(of[rate]) for rate in SETTINGS}
            print(f"{name:28}" + "".join(f"{medians[r]:>10.1f} ({medians[r] / base:4.2f})" for r in SETTINGS))
        for rate in ("0", "1"):
            for name, (n, ns) in run_times(bed, rate, lambda: measure(bed, args.seconds)).items():
                print(f"rate {rate}: {name}: {ns:.0f} ns a run, of {n:,} runs")
        for name, ns in packet_costs(bed).items():
            print(f"a point, {name}: {ns} ns")
    finally:
        bed.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
