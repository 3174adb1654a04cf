#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Delays of known size at a random layer at random times: does nsight-report hops name the layer, and how large are they in its report?

Two hosts in namespaces, a container in each, VXLAN between them (tests/capsule/bed.py). In each round one of three queues, chosen at
random, is throttled by a tbf with a random rate, and at random times a burst of datagrams enters it. The wait of a burst's last datagram
follows from its bytes, the rate and the bucket, less the time that its sender took to send the burst. A control throttles nothing and
sends the same.

Goals: the layer is named in 99 % of the rounds, the size is within 5 % in 99 % of those, no control names a layer. Exit code 1 if one
is missed.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / part) for part in (".", "tests", "tools/nsight-report", "tools/nsight-demo")]

from capsule.bed import MTU, Bed, run  # noqa: E402
from capsule.stamping import Stamping  # noqa: E402
from machinery.harness import private  # noqa: E402
from machinery.testbed.turn import turn  # noqa: E402
from nsight_report import hops  # noqa: E402
from nsight_report.commands.hops import NAMED  # noqa: E402
from nsight_report.hops import layers  # noqa: E402

PORT = 7061
#: Queues that can be throttled, the layer of each, and how much longer a datagram is there than its payload: headers and the capsule.
#: The first device's queue does not count the capsule, since the kernel takes a packet's length before the egress hook.
PLACES = {
    ("a", "eth0"): (("a:eth0 out", "h1:va in"), 42),
    ("h1", "u0"): (("h1:u0 out", "h2:u1 in"), 42 + 28 + 50),
    ("h2", "vb"): (("h2:vb out", "b:eth0 in"), 42 + 28),
}
GOAL_NAMED, GOAL_SIZE, WITHIN = 0.99, 0.99, 0.05
#: A layer that delays less than this does not count: it is this machine's own noise.
FLOOR_NS = 3_000_000
BUCKET = 2_000
QUIET = 150


@dataclass(frozen=True)
class Injection:
    """``place`` None: a control. ``wait_ns``: of the last datagram of a burst of ``n`` with ``size`` bytes, sent at once."""

    place: tuple[str, str] | None
    rate_bit: int
    n: int
    size: int
    times: tuple[float, ...]

    @property
    def wait_ns(self) -> int:
        """All bytes less the bucket's, at that rate; the last datagram leaves when its tokens are there."""
        if self.place is None:
            return 0
        longer = PLACES[self.place][1]
        return ((self.size + longer) * self.n - BUCKET) * 8 * 1_000_000_000 // self.rate_bit


def draw(numbers: random.Random, control: bool) -> Injection:
    """Delays from 20 to 120 ms, three bursts within two seconds."""
    n, size = numbers.randrange(15, 40), numbers.randrange(400, MTU - 200)
    wait = numbers.uniform(0.02, 0.12)
    times = tuple(sorted(0.2 + 0.6 * i + numbers.uniform(0, 0.2) for i in range(3)))
    place = None if control else numbers.choice(sorted(PLACES))
    return Injection(place, int((size + 70) * n * 8 / wait), n, size, times)


def traffic(bed: Bed, injection: Injection) -> list[int]:
    """A datagram of 8 bytes every 13 ms, and a burst at each of the times; returns how long each burst took to send, ns."""
    took = []
    client, server = bed.datagrams(socket.AF_INET, PORT)
    began, left = time.monotonic(), list(injection.times)
    with client, server:
        for n in range(QUIET):
            client.send(b"q" * 8)
            server.recv(1 << 16)
            if left and time.monotonic() - began >= left[0]:
                left.pop(0)
                first = time.perf_counter_ns()
                for _ in range(injection.n):
                    last = time.perf_counter_ns()
                    client.send(b"b" * injection.size)
                took.append(last - first)
                for _ in range(injection.n):
                    server.recv(1 << 16)
            time.sleep(max(began + n * 0.013 - time.monotonic(), 0))
    return took


def played(bed: Bed, injection: Injection, directory: Path) -> tuple[hops.Collection, list[int]]:
    """What nsight-capsule collected in one round, and how long its bursts took to send."""
    places = [word for place in ("a", "h1", "h2", "b") for word in ("--netns", bed.name(place))]
    options = ["--rate", "1", "--protocol", "udp", "--port", str(PORT)]
    with Stamping(directory, *places, *options) as stamping:
        if injection.place:
            place, device = injection.place
            shape = ("rate", f"{injection.rate_bit}bit", "burst", str(BUCKET), "limit", "10000000")
            run("tc", "-n", bed.name(place), "qdisc", "add", "dev", device, "root", "tbf", *shape)
        try:
            took = traffic(bed, injection)
        finally:
            if injection.place:
                run("tc", "-n", bed.name(place), "qdisc", "del", "dev", device, "root")
        stamping.end()
    return hops.load(directory), took


def score(collection: hops.Collection, took: list[int], injection: Injection, prefix: str) -> dict[str, Any]:
    """The layer that the report names ("": none), whether it is right, and the error of its delay for the last datagram of a
    burst: the mean over the bursts."""
    rows = layers.passages(collection)
    slow = layers.chosen(collection.packets, 95, 100)
    excess = layers.excess(collection, rows, slow, layers.usual(collection))
    first = excess.iloc[0]
    named = (
        str(first["layer"]) if first["share"] >= NAMED and first["excess_ns"] / len(slow) > FLOOR_NS else ""
    )
    if injection.place is None:
        return {"named": named, "right": not named, "error": None}
    wanted = " -> ".join(f"{prefix}-{name}" for name in PLACES[injection.place][0])
    there = rows[rows["layer"] == wanted].merge(collection.packets[["packet", "length"]], on="packet")
    waits = there.loc[there["length"] == injection.size, "dur_ns"].to_numpy()
    last = waits[injection.n - 1 :: injection.n]  # packets are in the order of birth
    true = injection.wait_ns - np.array(took)
    error = float(np.abs(last / true - 1).mean()) if len(last) == len(true) else 1.0
    return {"named": named, "right": named == wanted, "error": error}


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    p.add_argument("--rounds", type=int, default=30, help="with a delay (default %(default)s)")
    p.add_argument("--controls", type=int, default=5, help="without one (default %(default)s)")
    p.add_argument("--seed", type=int, help="repeats a draw")
    a = p.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if a.seed is None else a.seed
    numbers = random.Random(seed)
    print(f"seed {seed}")
    scores: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with turn("capsule"):
        bed = Bed()
        bed.clear()
        try:
            bed.build()
            for n in range(a.rounds + a.controls):
                injection = draw(numbers, control=n >= a.rounds)
                with tempfile.TemporaryDirectory() as directory:
                    made = score(*played(bed, injection, Path(directory, "out")), injection, bed.prefix)
                scores[injection.place is None].append(made)
                where = ":".join(injection.place) if injection.place else "control"
                size = (
                    ""
                    if made["error"] is None
                    else f"{injection.wait_ns / 1e6:6.1f} ms, off by {made['error']:.2%}"
                )
                print(
                    f"{n + 1:3} {where:8} {size:26} {'right' if made['right'] else 'wrong: ' + (made['named'] or 'none')}",
                    flush=True,
                )
        finally:
            bed.clear()
    return verdict(scores[False], scores[True])


def verdict(rounds: list[dict[str, Any]], controls: list[dict[str, Any]]) -> int:
    """Print the three figures; 1 if a goal is missed."""
    right = [r for r in rounds if r["right"]]
    sized = [r for r in right if r["error"] <= WITHIN]
    silent = [c for c in controls if c["right"]]
    print(f"layer named:    {len(right)} of {len(rounds)} (goal {GOAL_NAMED:.0%})")
    worst = max((r["error"] for r in right), default=0.0)
    print(f"size within 5 %: {len(sized)} of {len(right)} (goal {GOAL_SIZE:.0%}); worst {worst:.2%}")
    print(f"controls silent: {len(silent)} of {len(controls)}")
    met = (
        len(right) >= GOAL_NAMED * len(rounds)
        and len(sized) >= GOAL_SIZE * len(right)
        and len(silent) == len(controls)
    )
    return 0 if met else 1


if __name__ == "__main__":
    private.mounts()
    sys.exit(main())
