#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Check where a recording says that the host took a core against a thread on each core that reads the clock all the time.

The threads (tests/machinery/load/gaps.c) run at the usual priority, below the recorded server. A gap in a thread's readings during
which it did not leave its core can only be an interrupt, whose time the recording has, or the host. While readings follow each other
the core was there. Not judged are times in which other threads had the core, and short gaps: they also come from interrupts without a
record, and from exits that no steal time counts. For each core, in ms:

judged      the time with a witness
true        the witness shows that the host had the core
named       the recording says so, in judged time
right       both
false       named, though the witness was running
missed      true, but not named
short       gaps below 0.1 ms
counted     growth of steal time in /proc/stat meanwhile, of all threads

Prints the table; needs root. Exit codes: 0 it ran, 1 a recording failed, 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "tools/nsight-demo")]

from machinery.testbed.bed import GAPS, BedError, Server, Testbed  # noqa: E402
from machinery.testbed.injections import Injection, merge  # noqa: E402

from evaluation.truth.measure import ROOT, record, report  # noqa: E402
from evaluation.truth.scenarios import Scenario  # noqa: E402

CORES = (0, 1)
SHORT_NS = 100_000
RUNNING, LEFT, EDGE = 0, 1, 2  # third column of gaps


def total(intervals: np.ndarray) -> int:
    """Length of disjoint intervals in ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum()) if len(intervals) else 0


def both(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection of two sets of disjoint sorted intervals.

    >>> both(np.array([[0, 5], [8, 9]]), np.array([[3, 10]])).tolist()
    [[3, 5], [8, 9]]
    """
    found, at = [], 0
    for start, end in a.tolist():
        while at < len(b) and b[at, 1] <= start:
            at += 1
        further = at
        while further < len(b) and b[further, 0] < end:
            found.append((max(start, int(b[further, 0])), min(end, int(b[further, 1]))))
            further += 1
    return np.array(found, np.int64).reshape(-1, 2)


def without(a: np.ndarray, b: np.ndarray, begin: int, end: int) -> np.ndarray:
    """``a`` less ``b``, which lies between ``begin`` and ``end``.

    >>> without(np.array([[0, 9]]), np.array([[2, 3]]), 0, 9).tolist()
    [[0, 2], [3, 9]]
    """
    edges = np.concatenate([[begin], b.ravel(), [end]]).reshape(-1, 2)
    return both(a, edges[edges[:, 1] > edges[:, 0]])


@dataclass(frozen=True)
class Judged:
    """ns of one core; the module's description has their meaning. ``judged``: the time with a witness."""

    judged: int
    true: int
    named: int
    right: int
    false: int
    missed: int
    short: int


def judge(witness: np.ndarray, absent: np.ndarray, interrupts: np.ndarray) -> Judged:
    """Compare; ``witness``: rows of gaps; ``absent``: where the host had the core as recorded; ``interrupts``: when handlers ran."""
    begin, end = int(witness[0, 0]), int(witness[-1, 1])
    gaps = witness[witness[:, 2] != EDGE]
    of_host = gaps[gaps[:, 2] == RUNNING][:, :2]
    is_short = of_host[:, 1] - of_host[:, 0] < SHORT_NS
    stayed, short = merge(of_host[~is_short]), total(of_host[is_short])
    # Steal time within a handler belongs to the host in both.
    inside = np.array([[begin, end]], np.int64)
    handled = without(both(merge(interrupts), inside), both(merge(absent), inside), begin, end)
    true = without(stayed, handled, begin, end)
    ran = without(inside, merge(gaps[:, :2]), begin, end)
    named = both(merge(absent), merge(np.concatenate([true, ran])))
    right = total(both(named, true))
    return Judged(
        total(true) + total(ran),
        total(true),
        total(named),
        right,
        total(both(named, ran)),
        total(true) - right,
        short,
    )


class Witness(Injection):
    """Threads that read the clock; real-time programs, like the server, go before them."""

    name = "witness"

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.rows: dict[int, np.ndarray] = {}
        self.counted: dict[int, int] = {}

    @contextlib.contextmanager
    def active(self, bed: Testbed, server: Server) -> Iterator[Injection]:
        before = counted_ns()
        logs = {cpu: bed.directory / f"gaps-{cpu}.tsv" for cpu in CORES}
        threads = {
            cpu: bed.start("gaps", [str(GAPS), str(cpu), f"{self.seconds:g}", str(log)])
            for cpu, log in logs.items()
        }
        yield self
        for cpu, thread in threads.items():
            if thread.wait(60):
                raise BedError(f"gaps failed: {thread.output()}")
            self.rows[cpu] = np.loadtxt(logs[cpu], np.int64, ndmin=2)
        self.counted = {cpu: ns - before[cpu] for cpu, ns in counted_ns().items()}


def counted_ns() -> dict[int, int]:
    """Steal time of each core since boot, as /proc/stat has it."""
    words = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return {int(w[0][3:]): int(w[8]) * tick for w in words if w[0][:3] == "cpu" and w[0] != "cpu"}


def measure(server: str, directory: Path, seconds: float) -> list[tuple[str, ...]]:
    """One recording's rows of the table."""
    witness = Witness(seconds + 1)
    scenario = Scenario("host", server, lambda: witness, ())
    recording = record(scenario, directory, seconds)
    report(recording.capture, scenario, recording.port)
    contexts = pd.read_parquet(recording.capture / "tables" / "contexts.parquet")
    rows = []
    for cpu in CORES:
        of = contexts[contexts.cpu == cpu]
        spans = {
            kind: of[of.kind == kind][["start_ns", "end_ns"]].to_numpy(np.int64)
            for kind in ("absent", "softirq", "hardirq")
        }
        low, high = int(of.start_ns.min()), int(of.end_ns.max())
        seen = witness.rows[cpu]
        np.save(directory / f"gaps-{cpu}.npy", seen)
        seen = seen[(seen[:, 0] >= low) & (seen[:, 1] <= high)]
        j = judge(seen, spans["absent"], np.concatenate([spans["softirq"], spans["hardirq"]]))
        figures = (j.judged, j.true, j.named, j.right, j.false, j.missed, j.short, witness.counted[cpu])
        rows.append((server, str(cpu), *(f"{ns / 1e6:.2f}" for ns in figures)))
    return rows


HEAD = ("server", "core", "judged", "true", "named", "right", "false", "missed", "short", "counted")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "host", help="captures")
    parser.add_argument("-d", "--seconds", type=float, default=10, help="of each recording (default 10)")
    args = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    try:
        for server in ("memcached", "nginx"):
            rows += measure(server, args.output / server, args.seconds)
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    for row in (HEAD, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
