#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Test decoders with random orders of packets that hardware may write.

    run.py [-n SEQUENCES] [--seed FIRST] [--kind NAME]

Each sequence is a walk of a small program, with the events that the SDM allows in between. Rows of nsight-decode (edges; in slices of
one PSB each; calls, and build from edges) are compared with the executed branches, times with an independent reader of the packets, to
1 ns. For every fifth recording nsight.py, nsight-edges and, where possible, libipt alone are compared too. 100,000 sequences take about
seven minutes. Exit code 0: all agree; 1: something differs (its seed and kind repeat it); 2: usage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as ds

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from decode import parity
from decode.orders import batch
from decode.orders.batch import Difference

#: Sequences per recording, and how many recordings perf decodes: perf needs most of the time.
IN_RECORDING, OF_PERF = 2500, 5
FILTER = parity.SCRIPTS / "dlfilters/nsight-edges.so"


@dataclass
class Result:
    """Sequences by route, and what differs."""

    n: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def add(self, route: str, n: int, differences: list[Difference]) -> None:
        self.n[route] = self.n.get(route, 0) + n
        self.differences += differences


def tables(made: batch.Batch, directory: Path) -> list[Difference]:
    """No row of calls, or of build from edges, has a negative duration. (Losses and edges of the same time have no order in a file.)"""
    found = []
    for name, argv in (
        ("calls", [directory / "perf.data", "--symfs", directory / "symfs"]),
        ("build", ["native.edges"]),
    ):
        out = directory / f"{name}.tables"
        argv = [parity.NATIVE, name, *argv, "--out", out]
        subprocess.run(argv, check=True, cwd=directory, capture_output=True)
        table = ds.dataset(out / "calls").to_table(columns=["dur_ns", "self_ns"])
        if table.num_rows == 0 or any((table[c].to_numpy() < 0).any() for c in table.column_names):
            found.append(
                Difference(
                    made.kind, name, made.buffers[0][0].seed, "no row, or one that lasts less than nothing"
                )
            )
    return found


def check(kind: str, seeds: range, result: Result, with_perf: bool) -> None:
    """One recording through the routes."""
    made = batch.make(kind, seeds)
    with tempfile.TemporaryDirectory(prefix="nsight-orders-") as name:
        directory = Path(name)
        made.recording.write(directory)
        expected = batch.expected(made)
        for route, options in (("one PSB a slice", ("--slice-bytes", "1")), ("nsight-decode", ())):
            stream = batch.by_native(made, directory, *options)
            result.add(route, len(seeds), batch.compare(made, route, stream, expected, True))
        result.add("calls, build", len(seeds), tables(made, directory))
        if not with_perf:
            return
        for route in ("nsight.py", *(["nsight-edges"] if FILTER.exists() else [])):
            stream = parity.by_perf(directory / "perf.data", directory / "symfs", directory, route)
            wanted = batch.for_perf(expected)
            n = sum(rows is not None for buffer in wanted for rows in buffer)
            result.add(route, n, batch.compare(made, route, stream, wanted, False))
        if batch.LIBIPT.exists() and kind in batch.PLAIN:
            result.add("libipt", len(seeds), batch.by_libipt(made, directory))


def run(
    n: int, first: int, kinds: list[str], in_recording: int = IN_RECORDING, with_perf: bool = True
) -> Result:
    """``n`` sequences, kinds in turn."""
    result = Result()
    for number, begin in enumerate(range(first, first + n, in_recording)):
        seeds = range(begin, min(begin + in_recording, first + n))
        check(kinds[number % len(kinds)], seeds, result, with_perf and number % OF_PERF == 0)
    return result


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(prog="run.py", description="Hold decoders against orders of packets.")
    p.add_argument("-n", type=int, default=100_000, help="sequences (default: 100000)")
    p.add_argument("--seed", type=int, default=0, help="the first one's (default: 0)")
    p.add_argument("--kind", choices=batch.KINDS, help="of this kind alone")
    args = p.parse_args()
    result = run(args.n, args.seed, [args.kind] if args.kind else list(batch.KINDS))
    for difference in result.differences[:20]:
        print(difference.line())
    for route, n in result.n.items():
        wrong = sum(
            d.route == route or (route == "calls, build" and d.route in route) for d in result.differences
        )
        print(f"{route:<18}{n:>9,} sequences, {wrong} differ")
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
