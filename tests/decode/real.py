#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compare all decoding routes from packets to calls with each other on recordings of real processors, including times.

    NSIGHT_PT_REAL=DIR real.py

DIR contains recordings, each a file perf.data or a directory of that name; or a program ``wrap`` that makes recordings in a given
directory. Programs are where the recordings say, or below ``symfs`` beside perf.data. For each recording, one line per comparison:
transfers, time differences. Exit code 0: all agree; 1: something differs; 2: NSIGHT_PT_REAL has no recording.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from decode import edges, parity

VARIABLE = "NSIGHT_PT_REAL"
#: Between two CYC packets perf interpolates time differently: by the last ratio that it measured.
NEAR_NS = 50
LINE = re.compile(r"\s*(-?\d+)\s+(\d+)\.(\d{9}):\s+([a-z][a-z ()]*?)\s+([0-9a-f]+)(?: \S+)? =>\s+([0-9a-f]+)")
COLUMNS = ("from", "to", "kind")
KINDS = {"call": 1, "return": 2, "syscall": 3, "sysret": 4, "hw int": 5, "iret": 6, "int": 10}


def recordings(place: Path, scratch: Path) -> list[Path]:
    """Every perf.data; those that must be made are written to ``scratch``."""
    found = sorted(place.rglob("perf.data"))
    if not found and os.access(place / "wrap", os.X_OK):
        subprocess.run([place / "wrap", scratch], check=True, stdout=subprocess.DEVNULL)
        found = sorted(scratch.rglob("perf.data"))
    return [path for path in found if not any(p in found for p in path.parents)]


def by_perf(data: Path, symfs: Path) -> parity.Array:
    """What perf script itself prints."""
    argv = ["perf", "script", "-f", "-i", str(data), "--symfs", str(symfs), "--itrace=cr", "--ns"]
    argv += ["-F", "tid,time,flags,ip,addr"]
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    found = [found for line in text.splitlines() if (found := LINE.match(line))]
    rows = np.zeros(len(found), np.dtype(list(edges.EDGE)))
    for at, line in enumerate(found):
        tid, seconds, ns, flags, start, end = line.groups()
        kind = 7 if flags.startswith("tr strt") else 8 if flags.startswith("tr end") else KINDS.get(flags, 0)
        rows[at]["time"] = int(seconds) * 10**9 + int(ns)
        rows[at]["tid"], rows[at]["kind"] = int(tid), kind
        rows[at]["from"], rows[at]["to"] = int(start, 16), int(end, 16)
    return rows


def same_times(a: parity.Array, b: parity.Array, near: int) -> str:
    """How far times of the same rows differ, if by more than ``near`` ns."""
    apart = np.abs(a["time"].astype(np.int64) - b["time"].astype(np.int64))
    far = int((apart > near).sum())
    return f"{far} times differ by more than {near} ns, by up to {int(apart.max())}" if far else ""


def kept(perfs: parity.Array, mine: parity.Array) -> tuple[int, str]:
    """Whether everything that perf decodes is in our result, in order: after a loss perf may have less."""
    here = iter(mine[list(COLUMNS)].tolist())
    for at, row in enumerate(perfs[list(COLUMNS)].tolist()):
        if row not in here:
            return at, f"row {at} of perf is not in ours"
    return len(perfs), ""


def ordered(rows: parity.Array) -> str:
    """Whether time goes backwards in a buffer of a core or a thread."""
    rows = rows[np.lexsort((np.where(rows["cpu"] < 0, rows["tid"], 0), rows["cpu"]))]
    same = rows["cpu"][1:] == rows["cpu"][:-1]
    same &= (rows["cpu"][1:] >= 0) | (rows["tid"][1:] == rows["tid"][:-1])
    back = int((same & (rows["time"][1:] < rows["time"][:-1])).sum())
    return f"{back} times are before the one before" if back else ""


def compare(data: Path) -> list[parity.Comparison]:
    """All comparisons of one recording."""
    name = data.parent.name
    symfs = data.parent / "symfs" if (data.parent / "symfs").is_dir() else Path("/")
    with tempfile.TemporaryDirectory(prefix="nsight-real-") as directory:
        routes = {p: parity.by_perf(data, symfs, Path(directory), p) for p in ("nsight.py", "nsight-edges")}
        native = parity.by_native(data, symfs, Path(directory))
    script, dlfilter = routes["nsight.py"].edges, routes["nsight-edges"].edges
    perfs, mine = parity.stacked(routes["nsight.py"]), parity.stacked(native)
    printed = by_perf(data, symfs)
    done = [("dlfilter = nsight.py", *parity.same_rows(script, dlfilter, ("time", "tid", *COLUMNS)))]
    done.append(("nsight.py = perf", *parity.same_rows(script, printed, ("time", "tid", *COLUMNS))))
    whole = len(mine) == len(perfs) and not np.isin(native.events["code"], (1, 2, 3)).any()
    if whole:
        done.append(("native = nsight.py", *parity.same_rows(perfs, mine, ("tid", *COLUMNS))))
        done.append(("  its times", len(mine), same_times(perfs, mine, NEAR_NS)))
    else:
        inside = [rows[~np.isin(rows["kind"], (parity.BEGIN, parity.END))] for rows in (perfs, mine)]
        done.append(("native has nsight.py's", *kept(*inside)))
    done.append(("  its order of time", len(mine), ordered(native.edges)))
    return [parity.Comparison(name, *row) for row in done]


def main() -> int:
    """Entry point."""
    with tempfile.TemporaryDirectory(prefix="nsight-real-") as scratch:
        place = os.environ.get(VARIABLE, "")
        found = recordings(Path(place), Path(scratch)) if place else []
        if not found:
            print(
                f"error: {VARIABLE}={place}: no recording there\nhint: a directory with files perf.data below it",
                file=sys.stderr,
            )
            return 2
        rows = [row for data in found for row in compare(data)]
    print(f"{'recording':<18}{'routes':<28}{'transfers':>11}")
    for row in rows:
        print(row.line())
    return 1 if any(row.differs for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
