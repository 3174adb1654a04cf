#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compare the decoding routes from packets to calls with each other, and with the emulator's own log.

    parity.py CAPTURE...

CAPTURE is a directory that make-capture wrote (with observer.log) or an unpacked committed one. For
each, one line per comparison: nsight.py against the dlfilter (every column), the native decoder
against nsight.py, and against the log (kind of transfer, core, both addresses, in order). Exit code 0:
all agree; 1: something differs; 2: usage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from decode import edges

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = TOP / "perf-scripts"
NATIVE = TOP / "build" / "cargo" / "release" / "nsight-decode"
WALK = TOP / "build" / "cargo" / "release" / "pt-walk"
CALL, RETURN, SYSCALL, SYSRET, INTERRUPT, IRET, BEGIN, END, TAIL, SOFT = range(1, 11)

Array = npt.NDArray[np.void]


@dataclass(frozen=True)
class Comparison:
    """``n``: compared transfers; ``differs``: the first difference, as text."""

    capture: str
    what: str
    n: int
    differs: str = ""

    def line(self) -> str:
        """One line of the report."""
        return f"{self.capture:<18}{self.what:<28}{self.n:>11,}  {self.differs or 'equal'}"


def by_perf(data: Path, symfs: Path, directory: Path, program: str) -> edges.Stream:
    """The stream of nsight.py or of the dlfilter (``nsight-edges``), through stock perf."""
    out = directory / "perf.edges"
    script = ["-i", str(data), "--symfs", str(symfs)]
    if program == "nsight.py":
        argv = [
            "perf",
            "script",
            *script,
            "--itrace=crepw",
            "-s",
            str(SCRIPTS / "nsight.py"),
            "--",
            "-o",
            str(out),
        ]
    else:
        argv = [str(SCRIPTS / "nsight-edges"), "-i", str(data), "-o", str(out), "--", "--symfs", str(symfs)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return edges.read(out)


def by_native(data: Path, symfs: Path, directory: Path, *options: str) -> edges.Stream:
    """The stream of nsight-decode."""
    out = directory / "native.edges"
    argv = [str(NATIVE), "edges", str(data), "--symfs", str(symfs), "-o", str(out), *options]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return edges.read(out)


def _where(row: np.void) -> str:
    return f"{edges.KINDS[row['kind']]} {row['from']:#x} to {row['to']:#x} at {row['time']} on {row['cpu']}"


def same_rows(a: Array, b: Array, columns: tuple[str, ...]) -> tuple[int, str]:
    """How many leading rows agree in ``columns``, and the first pair that does not."""
    n = min(len(a), len(b))
    equal = np.ones(n, bool)
    for name in columns:
        equal &= a[name][:n] == b[name][:n]
    if not equal.all():
        at = int(np.argmin(equal))
        return at, f"row {at}: {_where(a[at])}; {_where(b[at])}"
    return n, "" if len(a) == len(b) else f"{len(a)} rows, {len(b)} rows"


def stacked(stream: edges.Stream) -> Array:
    """Edges that both kinds of routes have: no tail calls, cores (or threads with buffers of their own) one after the other."""
    rows = stream.edges[stream.edges["kind"] != TAIL]
    threads = np.where(rows["cpu"] < 0, rows["tid"], 0)
    return rows[np.lexsort((threads, rows["cpu"]))]


def strangers(a: Array, b: Array) -> str:
    """Where two streams of the same transfers assign them to different threads."""
    differ = a["tid"] != b["tid"]
    if not differ.any():
        return ""
    first, last = a["time"][differ][[0, -1]]
    return f"{int(differ.sum())} of another thread, from {first} to {last}"


def logged(log: Path) -> list[npt.NDArray[np.uint64]]:
    """By core: (from, to) of the log's calls, returns, far transfers, interrupts and exceptions."""
    out = subprocess.run([str(WALK), "branches", str(log)], check=True, capture_output=True, text=True).stdout
    by_cpu: dict[int, list[tuple[int, int]]] = {}
    for line in out.splitlines():
        cpu, _, kind, start, end = line.split("\t")
        if kind in ("call", "indirect call", "ret", "far", "async"):
            by_cpu.setdefault(int(cpu), []).append((int(start, 16), int(end, 16)))
    return [np.array(by_cpu[cpu], np.uint64) for cpu in sorted(by_cpu)]


def against_log(stream: edges.Stream, log: Path) -> tuple[int, str]:
    """The stream's transfers between begin and end of trace against the log's."""
    n = 0
    for cpu, truth in enumerate(logged(log)):
        rows = stream.edges
        rows = rows[(rows["cpu"] == cpu) & ~np.isin(rows["kind"], (TAIL, BEGIN, END))]
        count = min(len(rows), len(truth))
        equal = (rows["from"][:count] == truth[:count, 0]) & (rows["to"][:count] == truth[:count, 1])
        if not equal.all():
            at = int(np.argmin(equal))
            start, end = truth[at]
            return n + at, f"row {at}: {_where(rows[at])}; in the log {start:#x} to {end:#x}"
        n += count
        if len(rows) != len(truth):
            return n, f"{len(rows)} transfers on core {cpu}, {len(truth)} in the log"
    return n, ""


def compare(capture: Path) -> list[Comparison]:
    """All comparisons of one capture."""
    data, symfs, log = capture / "capture.nsight" / "perf.data", capture / "symfs", capture / "observer.log"
    done = []
    with tempfile.TemporaryDirectory(prefix="nsight-parity-") as name:
        directory = Path(name)
        script = by_perf(data, symfs, directory, "nsight.py")
        dlfilter = by_perf(data, symfs, directory, "nsight-edges")
        native = by_native(data, symfs, directory)
    columns = ("time", "from", "to", "pid", "tid", "cpu", "kind")
    done.append(("dlfilter = nsight.py", *same_rows(script.edges, dlfilter.edges, columns)))
    mine, perfs = stacked(native), stacked(script)
    done.append(("native = nsight.py", *same_rows(perfs, mine, ("from", "to", "kind"))))
    if len(mine) == len(perfs):
        done.append(("  its threads", len(mine), strangers(perfs, mine)))
    whole = not np.isin(native.events["code"], (1, 2, 3, 10)).any()
    if log.exists() and whole:
        done.append(("native = log", *against_log(native, log)))
    return [Comparison(capture.name, *row) for row in done]


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(prog="parity.py", description="Hold the routes to calls against each other.")
    p.add_argument("captures", nargs="+", metavar="CAPTURE", type=Path)
    found = [row for capture in p.parse_args().captures for row in compare(capture.resolve())]
    print(f"{'capture':<18}{'routes':<28}{'transfers':>11}")
    for row in found:
        print(row.line())
    return 1 if any(row.differs for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
