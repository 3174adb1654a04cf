# SPDX-License-Identifier: GPL-2.0-only
"""Intervals: how many per second are recorded without loss, and how long the diagnosis of many intervals takes.

    .venv/bin/python tests/evaluation/bench/bench_intervals.py [--intervals N] [--seconds S]

A program that only marks intervals is recorded with one thread, and with one per core. Then N intervals of 100 ns to 10 ms, at random times of
a recording and in its busiest threads, are diagnosed from a CSV file. The aims are 1,000,000 intervals per second on all cores together without
loss, and 60 s and 2 GiB for 10,000,000 intervals. Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools" / "nsight-report")]

import nsight_report  # noqa: E402
from nsight_report.tables.data_frames import to_pandas  # noqa: E402

RECORDER = ROOT / "tools/nsight-record/nsight-record"
AIM_PER_SECOND, AIM_S, AIM_BYTES = 1_000_000, 60, 2 << 30
THREADS = 8


def marks(directory: Path, threads: int, seconds: float) -> tuple[float, int]:
    """Intervals per second of a program with this number of threads, and how many of them are missing from the recording."""
    program, capture = directory / "marks", directory / "marks.nsight"
    subprocess.run(
        ["gcc", "-O2", "-D_GNU_SOURCE", "-I", ROOT / "tools/nsight-interval", Path(__file__).with_name("marks.c"), "-o", program,
         "-pthread"], check=True,
    )  # fmt: skip
    record = [
        RECORDER,
        "-q",
        "-f",
        "--recorder",
        "bpf",
        "--mode",
        "tracepoints",
        "--syscalls",
        "none",
        "-o",
        capture,
    ]
    interval = ["--interval", f"usdt:{program}:nsight:tick_begin..tick_end"]
    done = subprocess.run(
        [*record, *interval, "--", program, str(threads), str(seconds)],
        check=True,
        capture_output=True,
        text=True,
    )
    n = int(done.stdout.split()[0])
    told = json.loads((capture / "manifest.json").read_text())
    (of,) = told["intervals"]
    return n / seconds, n - of["begun"] + of["again"] + of["unpaired"] + told["records"]["lost"]


def stamped(capture: Path, n: int, file: Path) -> None:
    """A file of ``n`` intervals within the time of a recording, ordered by begin."""
    pipeline = nsight_report.open(capture).pipeline
    pipeline.run_for(["thread_states"])
    parts = pipeline.stored("thread_states").batches(("tid", "state", "start_ns", "end_ns"))
    states = pd.concat([to_pandas(part) for part in parts])
    running = states[states["state"].astype(str) == "running"]
    ran = (running["end_ns"] - running["start_ns"]).groupby(running["tid"]).sum()
    threads = ran.nlargest(THREADS).index.to_numpy()
    begin, end = int(states["start_ns"].min()), int(states["end_ns"].max())
    random = np.random.default_rng(3)
    start = np.sort(random.integers(begin, end - 20_000_000, n))
    stop = start + (100 * 10 ** (random.random(n) * 5)).astype(np.int64)
    columns = {
        "name": np.array(["a", "b", "c"])[random.integers(0, 3, n)], "start": start, "stop": stop,
        "thread": threads[random.integers(0, len(threads), n)],
    }  # fmt: skip
    arrow_csv.write_csv(pa.table(columns), file)


def diagnosed(directory: Path, n: int, seconds: float) -> tuple[float, int]:
    """Seconds, and peak memory in bytes, of the report's process and its children."""
    capture, file = directory / "busy.nsight", directory / "busy.csv"
    sleeper = f"end=$((SECONDS+{int(seconds)})); while [ $SECONDS -lt $end ]; do sleep 0.01; done"
    record = [RECORDER, "-q", "-f", "--recorder", "bpf", "--mode", "tracepoints", "-o", capture, "--"]
    subprocess.run(
        [*record, "bash", "-c", f"for i in {{1..{THREADS}}}; do ({sleeper}) & done; wait"], check=True
    )
    stamped(capture, n, file)
    began = time.monotonic()
    report = [sys.executable, "-m", "nsight_report", capture, "--intervals", file]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tools/nsight-report")}
    process = subprocess.Popen(report, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("error: nsight-report failed; see above")
    return time.monotonic() - began, usage.ru_maxrss * 1024


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--intervals", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--seconds", type=float, default=5, metavar="S", help="of each recording of marks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-intervals-") as scratch:
        missed = False
        cores = len(os.sched_getaffinity(0))
        for threads in dict.fromkeys((1, cores)):
            rate, lost = marks(Path(scratch), threads, args.seconds)
            print(
                f"recorded of {threads} threads: {rate:,.0f} intervals a second, {lost:,} not recorded",
                flush=True,
            )
            missed |= lost > 0 or (threads == cores and rate < AIM_PER_SECOND)
        took, most = diagnosed(Path(scratch), args.intervals, 15)
        print(f"diagnosed: {args.intervals:,} intervals in {took:.1f} s, {most / (1 << 30):.2f} GiB")
        missed |= most > AIM_BYTES or took > AIM_S * args.intervals / 10_000_000
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
