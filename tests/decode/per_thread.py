#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Convert an emulated capture into a recording like that of `perf record --per-thread`.

    per_thread.py CAPTURE OUT [--tid TID]... [-- options of pt-encode]

CAPTURE is a directory that make-capture wrote, of one CPU. Each thread's trace is on while it ran, according to the side-band,
and goes to a separate buffer, without CPU and without switch records. Without --tid: the four threads that ran longest.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from decode import parity

BIN = parity.NATIVE.parent


def intervals(capture: Path) -> tuple[dict[int, list[tuple[int, int]]], list[int]]:
    """When each thread ran, in ns of perf's clock, from the whole capture; and the clock's conversion."""
    with tempfile.TemporaryDirectory(prefix="nsight-per-thread-") as directory:
        data = capture / "capture.nsight" / "perf.data"
        rows = parity.by_native(data, capture / "symfs", Path(directory)).edges
    assert not rows["cpu"].any(), "a capture of one CPU"
    begins = np.flatnonzero(np.diff(rows["tid"], prepend=-2))
    ends = np.append(begins[1:], len(rows)) - 1
    ran: dict[int, list[tuple[int, int]]] = {}
    for begin, end in zip(begins, ends, strict=True):
        span = int(rows["time"][begin]), int(rows["time"][end])
        ran.setdefault(int(rows["tid"][begin]), []).append(span)
    return ran, conversion(data / "data")


def conversion(data: Path) -> list[int]:
    """Shift, mult and zero of AUXTRACE_INFO, the first record that the merger writes."""
    content = data.read_bytes()
    (at,) = struct.unpack_from("<Q", content, 40)
    assert struct.unpack_from("<I", content, at) == (70,)
    return list(struct.unpack_from("<QQQ", content, at + 8 + 8 + 8))


def ticks(ns: int, clock: list[int]) -> int:
    """TSC at a time."""
    shift, mult, zero = clock
    return ((ns - zero) % (1 << 64) << shift) // mult


def make(capture: Path, out: Path, tids: list[int], options: list[str]) -> list[int]:
    """Writes perf.data and kcore_dir into ``out``; returns the threads in it."""
    ran, clock = intervals(capture)
    by_length = sorted(ran, key=lambda tid: -sum(end - begin for begin, end in ran[tid]))
    chosen = tids or [tid for tid in by_length if tid > 0][:4]
    with tempfile.TemporaryDirectory(prefix="nsight-per-thread-") as directory:
        argv = [BIN / "pt-merge", "--side-band", capture / "guest/capture.nsight/perf.data", "--out", out]
        argv += ["--vdso", capture / "guest/vdso.so", "--vdso-name", "/vdso.so"]
        for tid in chosen:
            off, last = [], 0
            for begin, end in ran[tid]:
                off += ["--off", f"{last}-{ticks(begin, clock)}"]
                last = ticks(end, clock)
            off += ["--off", f"{last}-{1 << 62}"]
            aux = Path(directory) / str(tid)
            subprocess.run(
                [BIN / "pt-encode", capture / "observer.log", "--out", aux, *off, *options],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            argv += ["--thread", f"{tid}:{aux}"]
        subprocess.run([*argv, "--aux", Path(directory) / str(chosen[0])], check=True)
    return chosen


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(
        prog="per_thread.py", description="A capture as perf record --per-thread has it."
    )
    p.add_argument("capture", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--tid", type=int, action="append", default=[])
    p.add_argument("options", nargs="*")
    a = p.parse_args()
    print(*make(a.capture.resolve(), a.out, a.tid, a.options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
