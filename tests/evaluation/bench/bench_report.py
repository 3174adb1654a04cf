#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""How long a report takes, stage by stage, and how the time grows with the recording.

    python tests/evaluation/bench/bench_report.py [--requests] [--sizes 0.25,1] [--directory DIR] [--repeats N]

Size 1 is 100,800 messages with 50 million calls. A capture of each size is made (or found in --directory): clock
readings, message events and the tables that decoding makes, since bench_pt.py measures the way from packets to calls.
Each stage then runs in a separate process, from the stored tables of the earlier stages, so that its time, processor
time and peak memory (resident, with its children) are measured separately. Each includes the start of Python and its
packages, which is printed first. The last lines are one process from clock readings to the report, and peers that only
find the calls of the compared messages: read into pandas, and by DuckDB and Polars if they are installed.

With --requests, size 1 is a million requests with 49 million rows of activity in mode tracepoints, and requests are diagnosed;
line "joined and diagnosed" is one process from stored events and activity to the terminal.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for part in ("tools/nsight-report", "tests", "tests/evaluation/bench"):
    sys.path.insert(0, str(ROOT / part))

import pyarrow.parquet as pq  # noqa: E402
from report_capture import decoded, make  # noqa: E402

MESSAGES, FAN = 100_800, 22
REQUESTS = 1_000_000
REPORT = [sys.executable, "-m", "nsight_report"]
PEERS = Path(__file__).with_name("report_peers.py")
#: A table with more calls than this does not fit into memory for peers that read it whole.
PEERS_CALLS = 10**8


@dataclass
class Run:
    """Cost of one process."""

    wall: float
    cpu: float
    mib: float


def run(command: list[str]) -> Run:
    """Run to the end; raises when it fails."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools/nsight-report")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else Python compiles its packages every time
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, stderr=said, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: {said.read().decode(errors='replace')[-2000:]}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def best(command: list[str], repeats: int) -> Run:
    """The run with the least processor time, and the peak memory of all runs."""
    runs = [run(command) for _ in range(repeats)]
    least = min(runs, key=lambda r: r.cpu)
    return Run(min(r.wall for r in runs), least.cpu, max(r.mib for r in runs))


def capture(directory: Path, size: float, requests: bool) -> Path:
    """The capture of a size, made unless it is there."""
    path = directory / f"bench-{'requests-' * requests}{size:g}.nsight"
    if not path.exists():
        start = time.perf_counter()
        n, fan = (REQUESTS, 0) if requests else (MESSAGES, FAN)
        made = make(path, int(n * size) // 4 * 4, fan, seed=1, answered=requests)
        took = time.perf_counter() - start
        print(
            f"made {path.name}: {made.n_messages:,} messages, {made.n_calls:,} calls, "
            f"{made.n_activity:,} rows of activity, {took:.0f} s",
            flush=True,
        )
    decoded(path)
    return path


def measure(path: Path, repeats: int, requests: bool) -> Iterator[tuple[str, int, Run]]:
    """Name, rows and cost of each stage, of each report, of all in one process, and of peers."""
    report = [*REPORT, str(path), *(["--latency", "request"] if requests else [])]
    rows = {
        "messages": "events", "requests": "messages", "anomalies": "calls", "attribution": "found_anomalies", "queuing": "calls", "cores": "contexts",
    }  # fmt: skip

    def n_rows(table: str) -> int:
        return int(pq.read_metadata(path / "tables" / f"{table}.parquet").num_rows)

    yield "start", 0, best([*REPORT, "--version"], repeats)
    for stage in ("events", "messages", "requests", "anomalies", "attribution", "queuing", "cores"):
        took = best([*report, "--stage", stage], repeats)
        yield stage, n_rows(rows.get(stage, stage)), took
    with tempfile.TemporaryDirectory() as out:
        # Updates the tables that became stale because stages ran alone; everything after this only reads.
        run(report)
        for name, more in (("terminal", []), ("JSON", ["--json"]), ("HTML and figures", ["-o", out])):
            yield name, n_rows("messages"), best([*report, *more], repeats)
        for name, more in (("all, terminal", []), ("all, HTML", ["-o", out])):
            yield name, n_rows("calls"), best([*report, "--rerun", "events", *more], repeats)
    if requests:
        yield "joined and diagnosed", n_rows("requests"), best([*report, "--rerun", "messages"], repeats)
        return
    for peer in ("nsight", "pandas", "polars", "duckdb") if n_rows("calls") < PEERS_CALLS else ():
        if peer == "nsight" or importlib.util.find_spec(peer):
            took = best([sys.executable, str(PEERS), peer, str(path)], repeats)
            yield f"{peer}: calls of compared messages", n_rows("calls"), took


def main() -> int:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="0.25,1", help="multiples of 50 million calls (default: 0.25,1)")
    parser.add_argument("--directory", type=Path, help="keep captures here (default: made again each time)")
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="the best of N is printed (default: 1)"
    )
    parser.add_argument("--requests", action="store_true", help="diagnose requests, in mode tracepoints")
    args = parser.parse_args()
    sizes = sorted(float(size) for size in args.sizes.split(","))
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as scratch:
        directory = args.directory or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        before: dict[str, tuple[int, Run]] = {}
        for size in sizes:
            path = capture(directory, size, args.requests)
            calls = pq.read_metadata(path / "tables" / "calls.parquet").num_rows
            intervals = pq.read_metadata(path / "tables" / "contexts.parquet").num_rows
            print(
                f"\nsize {size:g}: {calls:,} calls, {intervals:,} intervals of contexts; {os.cpu_count()} cores"
            )
            print(
                f"  {'':36}   wall s    CPU s      MiB        rows  M rows/CPU s  load   growth: rows, CPU, MiB"
            )
            found = {}
            for name, n, took in measure(path, args.repeats, args.requests):
                found[name] = (n, took)
                rate = f"{n / took.cpu / 1e6:13.2f}" if n else " " * 13
                grown = ""
                if name in before and before[name][0]:
                    n_old, old = before[name]
                    grown = f"{n / n_old:16.1f} {took.cpu / old.cpu:5.1f} {took.mib / old.mib:5.1f}"
                load = os.getloadavg()[0]
                costs = f"{took.wall:8.2f} {took.cpu:8.2f} {took.mib:8.0f}"
                print(f"  {name:36} {costs} {n:11,} {rate} {load:5.1f} {grown}", flush=True)
            before = found
    return 0


if __name__ == "__main__":
    sys.exit(main())
