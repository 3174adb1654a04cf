#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Record the same traffic with both recorders at once, and compare nsight-report's results for the two captures.

    .venv/bin/python tests/record/parity.py                  memcached, 2,000 requests/s for 3 s
    .venv/bin/python tests/record/parity.py --server nginx --rate 500

Prints how many messages are the same (connection and bytes), how far apart their timestamps are, in what share of the
cores' time both recorders show the same context, what each recorder counted as lost or not seen, and the bytes that each
wrote. Exit codes: 0 the
messages are the same, 1 they are not, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from machinery.testbed.bed import BedError, Testbed  # noqa: E402

RECORD = ROOT / "tools/nsight-record/nsight-record"
REPORT = ROOT / "tools/nsight-report/nsight-report"
RECORDERS = ("bpf", "bpftrace")
IDENTITY = ["direction", "netns", "laddr", "lport", "raddr", "rport", "byte_start", "byte_end"]
STAMPS = ["arrival_ns", "handoff_ns", "app_ns"]
#: If the two differ for less time than this, they saw the same change, and their probes took different timestamps.
NEAR_NS = 20_000
HANGS_S = 600


@dataclass
class Tables:
    """The tables from one recorder's capture, and the bytes that it recorded."""

    messages: pd.DataFrame
    contexts: pd.DataFrame
    losses: dict[str, int]
    size: int


@dataclass
class Parity:
    """``messages``: from bpf, from bpftrace, in both. ``apart``: per timestamp, the ns between the two for every message in both.

    ``same``: share of the time of all cores in which both show the same context, where perf saw one; ``untraced``: per
    recorder, the context switches and wake-ups that are missing from its contexts; ``sizes``: bytes of records, from bpf
    and from bpftrace.
    """

    messages: tuple[int, int, int]
    apart: dict[str, npt.NDArray[np.int64]]
    same: float
    untraced: dict[str, dict[str, int]]
    sizes: tuple[int, int]

    def lines(self) -> list[str]:
        """Readable text."""
        ours, theirs, both = self.messages
        lines = [f"messages: bpf {ours}, bpftrace {theirs}, the same {both}"]
        for name, ns in self.apart.items():
            if len(ns):
                quartiles = np.percentile(np.abs(ns), (50, 99))
                lines.append(
                    f"{name}: {len(ns)} in both, apart by {quartiles[0]:.0f} ns (median), {quartiles[1]:.0f} ns (p99)"
                )
        lines.append(f"contexts: the same in {self.same:.2%} of the cores' time")
        lines += [
            f"{recorder}: {'; '.join(f'{what} {n}' for what, n in counts.items()) or 'nothing untraced'}"
            for recorder, counts in self.untraced.items()
        ]
        small, large = (size / 1e6 for size in self.sizes)
        return [
            *lines,
            f"bytes: bpf {small:.1f} MB, bpftrace {large:.1f} MB, {large / small:.1f} times as many",
        ]


def record(directory: Path, kind: str, rate: int, seconds: float) -> dict[str, Path]:
    """Run both recorders at once, around one load; the captures by recorder."""
    captures = {name: directory / f"{name}.nsight" for name in RECORDERS}
    with Testbed() as bed:
        server = bed.start_server(kind)
        log = directory / "load.tsv"
        load = bed.load_argv(
            server, ["-c", "4", "-r", str(rate), "-d", f"{seconds:g}", "--start-delay", "300"], log
        )
        # The inner recorder begins after the outer one and ends before it: each sees every byte of the load.
        argv = load
        for name in RECORDERS:
            argv = [str(RECORD), "-q", "-f", "-o", str(captures[name]), "--fix", "--port", str(server.port), "--rx",
                    "--recorder", name, *(["--syscalls", "messages", "--clients"] if name == "bpf" else []), "--", *argv]  # fmt: skip
        if bed.start("nsight-record", argv, grace_s=20).wait(HANGS_S):
            raise BedError("a recorder failed: " + (bed.directory / "1-nsight-record.log").read_text())
    return captures


def tables(capture: Path) -> Tables:
    """The tables that nsight-report computes from a capture."""
    done = subprocess.run(
        [sys.executable, REPORT, capture, "--json"], capture_output=True, text=True, timeout=HANGS_S
    )
    if done.returncode:
        raise BedError(f"nsight-report failed: {done.stderr}")
    losses: dict[str, Any] = json.loads(done.stdout)
    read = [pd.read_parquet(capture / "tables" / f"{name}.parquet") for name in ("messages", "contexts")]
    size = sum(
        f.stat().st_size
        for name in ("records", "perf.data", "events.tsv")
        for f in (capture / name, *(capture / name).glob("*"))
        if f.is_file()
    )
    return Tables(read[0], read[1], {row["cause"]: row["count"] for row in losses["losses"]}, size)


def same_context(ours: pd.DataFrame, theirs: pd.DataFrame) -> float:
    """Share of the time covered by both in which the innermost context is the same.

    System calls count as their thread: the two recorders do not both record the system calls of every process. Gaps in
    ``theirs``, and changes that both saw at slightly different times, are not compared.
    """
    same = total = 0
    for cpu in np.unique(theirs.cpu):
        a, b = (_intervals(frame[frame.cpu == cpu]) for frame in (ours, theirs))
        edges = np.unique(np.concatenate([a.start, a.end[-1:], b.start, b.end[-1:]]))
        edges = edges[(edges >= max(a.start[0], b.start[0])) & (edges <= min(a.end[-1], b.end[-1]))]
        took = np.diff(edges)
        at = [frame.what[np.searchsorted(frame.start, edges[:-1], side="right") - 1] for frame in (a, b)]
        equal = at[0] == at[1]
        compared = (at[1] != "gap") & (equal | (took >= NEAR_NS))
        same += int(took[compared & equal].sum())
        total += int(took[compared].sum())
    return same / total


@dataclass
class _Stretches:
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    what: npt.NDArray[np.object_]


def _intervals(frame: pd.DataFrame) -> _Stretches:
    kind = frame.kind.astype(str).replace("syscall", "thread")
    interrupt = kind.isin(["softirq", "hardirq"])
    what = np.where(interrupt, kind + " " + frame.symbol.astype(str), kind + " " + frame.tid.astype(str))
    what = np.where(kind == "gap", "gap", what)
    return _Stretches(frame.start_ns.to_numpy(), frame.end_ns.to_numpy(), what.astype(object))


def compare(ours: Tables, theirs: Tables) -> Parity:
    """Compare bpf's tables with bpftrace's."""
    both = ours.messages.merge(theirs.messages, on=IDENTITY, suffixes=("", "_2"))
    apart = {}
    for stamp in STAMPS:
        known = both[stamp].notna() & both[f"{stamp}_2"].notna()
        apart[stamp] = (both[stamp] - both[f"{stamp}_2"])[known].to_numpy(np.int64)
    untraced = {
        name: {what: n for what, n in t.losses.items() if "not seen" in what}
        for name, t in zip(RECORDERS, (ours, theirs), strict=True)
    }
    return Parity(
        (len(ours.messages), len(theirs.messages), len(both)),
        apart,
        same_context(ours.contexts, theirs.contexts),
        untraced,
        (ours.size, theirs.size),
    )


def run(directory: Path, kind: str = "memcached", rate: int = 2000, seconds: float = 3) -> Parity:
    """Record and compare."""
    captures = record(directory, kind, rate, seconds)
    return compare(*(tables(captures[name]) for name in RECORDERS))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", choices=("memcached", "redis", "nginx"), default="memcached")
    parser.add_argument("--rate", type=int, default=2000, help="requests a second (default 2000)")
    parser.add_argument("-d", "--seconds", type=float, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-parity-") as directory:
        parity = run(Path(directory), args.server, args.rate, args.seconds)
    print("\n".join(parity.lines()))
    return 0 if len(set(parity.messages)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
