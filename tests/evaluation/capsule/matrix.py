#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Is traffic unharmed? Protocols x offloads x sizes around the MTU, byte by byte, through veth, bridge and VXLAN, while nsight-capsule
is started, changed, ended and killed.

Every payload is compared with the sent one. Prints a row for each protocol and offload setting: packets that arrived, compared
payloads, those lost or changed, and the kernel's counts of wrong checksums and damaged headers. Goal: 0 of both; exit code 1 if
it is missed. --packets 10000000, the size for which the goal is defined, takes 13 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / part) for part in (".", "tests", "tools/nsight-report", "tools/nsight-demo")]

from capsule.bed import MTU, Bed, exchange, run  # noqa: E402
from capsule.stamping import Stamping, skipped, total  # noqa: E402
from machinery.harness import private  # noqa: E402
from machinery.testbed.turn import turn  # noqa: E402

PORT = 7071
CAPSULE = 28
IP: dict[int, int] = {socket.AF_INET: 20, socket.AF_INET6: 40}
CELLS = [
    (kind, family, offloads)
    for kind in ("tcp", "udp")
    for family in (socket.AF_INET, socket.AF_INET6)
    for offloads in (True, False)
]
BATCH = 8
#: So many bytes fit into the socket's buffers, which are empty before each write: one thread writes and then reads.
AT_ONCE = 4_096
WAIT_S = 5.0
PATTERN = random.Random(3).randbytes(400_000)


def sizes(kind: str, family: int) -> list[int]:
    """In steps of one byte around the largest sizes with and without a capsule; small ones; sizes that are segmented or fragmented."""
    if kind == "udp":
        room = MTU - IP[family] - 8
        return [*range(4, 12), *range(room - CAPSULE - 4, room + 5), 4_000]
    mss = MTU - IP[family] - 32
    around = [n for whole in (mss - CAPSULE, mss, 2 * (mss - CAPSULE)) for n in range(whole - 4, whole + 5)]
    return [*range(1, 9), *around, 20_000, 65_000]


@dataclass
class Cell:
    """One protocol and offload setting."""

    payloads: int = 0
    wrong: int = 0
    packets: int = 0
    notes: list[str] = field(default_factory=list)


def stream(bed: Bed, family: int, until: float, numbers: random.Random, cell: Cell) -> None:
    """Writes of every size over one connection."""
    client, server = bed.connection(family, PORT)
    with client, server:
        while time.monotonic() < until:
            for size in sizes("tcp", family):
                at = numbers.randrange(len(PATTERN) - size)
                data = PATTERN[at : at + size]
                cell.payloads += 1
                if passed(client, server, data) != data:
                    cell.wrong += 1


def passed(client: socket.socket, server: socket.socket, data: bytes) -> bytes:
    """What came of one write. A thread for each would take longer than the packets."""
    if len(data) > AT_ONCE:
        return exchange(client, server, data)
    client.sendall(data)
    got = server.recv(1 << 20)
    while len(got) < len(data):
        part = server.recv(1 << 20)
        if not part:
            break
        got += part
    return got


def datagrams(bed: Bed, family: int, until: float, numbers: random.Random, cell: Cell) -> None:
    """Batches of datagrams of every size; each begins with its number, so that losses of a stalled machine do not affect the next one."""
    client, server = bed.datagrams(family, PORT)
    server.settimeout(WAIT_S)
    with client, server:
        while time.monotonic() < until:
            for size in sizes("udp", family):
                sent = []
                for _ in range(BATCH):
                    at = numbers.randrange(len(PATTERN) - size)
                    sent.append(cell.payloads.to_bytes(4, "big") + PATTERN[at + 4 : at + size])
                    cell.payloads += 1
                    client.send(sent[-1])
                cell.wrong += len(set(sent) - received(server, sent))


def received(server: socket.socket, sent: list[bytes]) -> set[bytes]:
    """Their results."""
    came: set[bytes] = set()
    try:
        while len(came) < len(sent):
            data = server.recv(1 << 16)
            came |= {data} & set(sent)
            if data not in sent:
                print(f"  {len(data)} bytes came that nobody sent", file=sys.stderr)
    except TimeoutError:
        pass
    return came


class Faults:
    """Switch nsight-capsule on and off, at random times and in every way, until the context ends."""

    def __init__(self, bed: Bed, numbers: random.Random) -> None:
        self.places = [word for place in ("a", "h1", "h2", "b") for word in ("--netns", bed.name(place))]
        self.numbers, self.leave, self.runs, self.born, self.bad = numbers, threading.Event(), 0, 0, 0
        self.failures: list[str] = []
        self.thread = threading.Thread(target=self._work)

    def __enter__(self) -> Faults:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave.set()
        self.thread.join()

    def _work(self) -> None:
        try:
            while not self.leave.is_set():
                with tempfile.TemporaryDirectory() as directory:
                    self._once(Path(directory, "out"))
        except Exception as error:
            self.failures.append(repr(error))

    def _once(self, directory: Path) -> None:
        pick = self.numbers.choice
        options = ["--rate", pick(("1", "1/2", "1/16")), "--port", str(PORT), *pick(([], ["--keep"]))]
        with Stamping(directory, *self.places, *options) as stamping:
            self.runs += 1
            for _ in range(self.numbers.randrange(1, 5)):
                self.leave.wait(self.numbers.uniform(0, 1))
                stamping.change("--rate", pick(("0", "1", "1/3")))
            how = pick(("end", "end", "kill nsight-stamp", "kill both"))
            if how == "end":
                counted = stamping.end()
                self.born += total(counted, "born")
                self.bad += (
                    total(counted, "forged")
                    + total(counted, "drawn")
                    - total(counted, "born")
                    - skipped(counted)
                )
                return
            child = stamping.child()
            if how == "kill both":
                stamping.process.kill()
            os.kill(child, signal.SIGKILL)
            stamping.process.wait()


def arrived(bed: Bed) -> int:
    """Packets that b's device has received."""
    (link,) = json.loads(run("ip", "-n", bed.name("b"), "-j", "-s", "link", "show", "eth0"))
    return int(link["stats64"]["rx"]["packets"])


def play(bed: Bed, at_least: int, seconds: float, numbers: random.Random) -> int:
    """Run the cells in turn until this number of packets arrived; returns the exit code."""
    cells = {key: Cell() for key in CELLS}
    before, began = bed.errors(), time.monotonic()
    with Faults(bed, random.Random(numbers.random())) as faults:
        while sum(cell.packets for cell in cells.values()) < at_least and not faults.failures:
            for (kind, family, offloads), cell in cells.items():
                bed.offloads(offloads)
                first = arrived(bed)
                (stream if kind == "tcp" else datagrams)(
                    bed, family, time.monotonic() + seconds, numbers, cell
                )
                cell.packets += arrived(bed) - first
    errors = {name: n - before.get(name, 0) for name, n in bed.errors().items() if n != before.get(name, 0)}
    print(f"{'protocol':14} {'offloads':9} {'packets':>12} {'payloads':>12} {'lost or changed':>16}")
    for (kind, family, offloads), cell in cells.items():
        name = f"{kind} over IPv{4 if family == socket.AF_INET else 6}"
        print(
            f"{name:14} {'on' if offloads else 'off':9} {cell.packets:12,} {cell.payloads:12,} {cell.wrong:16,}"
        )
    wrong = sum(cell.wrong for cell in cells.values())
    print(
        f"{'all':24} {sum(c.packets for c in cells.values()):12,} {sum(c.payloads for c in cells.values()):12,} {wrong:16,}"
    )
    print(f"checksum and header errors of the kernel: {sum(errors.values())} {errors or ''}")
    print(
        f"nsight-capsule: {faults.runs} runs, ended or killed; {faults.born:,} capsules counted by those that ended, {faults.bad} counts that do not add up"
    )
    print(f"{time.monotonic() - began:.0f} s")
    if not faults.born:
        faults.failures.append("no run of nsight-capsule that was ended counted a capsule: try more packets")
    for failure in faults.failures:
        print(f"error: {failure}", file=sys.stderr)
    return int(bool(wrong or errors or faults.bad or faults.failures))


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    p.add_argument(
        "--packets",
        type=int,
        default=100_000,
        metavar="N",
        help="until so many arrived (default %(default)s)",
    )
    p.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="of each protocol and offload setting a turn (default %(default)s)",
    )
    p.add_argument("--seed", type=int, help="repeats a draw")
    a = p.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if a.seed is None else a.seed
    print(f"seed {seed}")
    with turn("capsule"):
        bed = Bed()
        bed.clear()
        try:
            bed.build()
            return play(bed, a.packets, a.seconds, random.Random(seed))
        finally:
            bed.clear()


if __name__ == "__main__":
    private.mounts()
    sys.exit(main())
