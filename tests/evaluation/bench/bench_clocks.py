# SPDX-License-Identifier: GPL-2.0-only
"""Cost of clock conversion and clock recording, compared with peers in the same run.

    python tests/evaluation/bench/bench_clocks.py [--values N] [--seconds S]

Conversion: ``ClockMap.convert`` (exact integers, refusals, bounds) against ``numpy.interp`` on
float64, which does less; its error is printed. Recording: the CPU share of nsight-clock with its
defaults against polling without sleep, which uses a whole core; and the size of its output.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/nsight-report"))

from nsight_report import clocks  # noqa: E402
from nsight_report.clocks import clock_readings  # noqa: E402
from nsight_report.clocks.segments import from_table  # noqa: E402

NSIGHT_CLOCK = ROOT / "tools/nsight-record/clock/nsight-clock"


def record(path: Path, seconds: float, *options: str) -> clock_readings.Readings:
    """One recording of this machine's clocks."""
    subprocess.run([str(NSIGHT_CLOCK), "-d", str(seconds), "-o", str(path), *options], check=True)
    return clock_readings.load(path)


def best(work: Callable[[], object], repeat: int = 3) -> float:
    """Shortest of a few runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(NSIGHT_CLOCK.parent)], check=True)
    with tempfile.TemporaryDirectory() as directory:
        polled = record(Path(directory) / "polled.tsv", args.seconds)
        size = (Path(directory) / "polled.tsv").stat().st_size
        burned = record(Path(directory) / "burned.tsv", args.seconds, "--poll-us", "0")

    for name, readings in (("nsight-clock, default", polled), ("nsight-clock --poll-us 0", burned)):
        assert readings.end
        polls, updates, missed, cpu_ns, wall_ns = readings.end
        width = (readings.polled.tsc_now - readings.polled.tsc_prev)[1:] * 1e3 / readings.tsc_khz
        print(
            f"{name}: {cpu_ns / wall_ns:.2%} of one core, {polls} polls, {updates} updates ({missed} missed), "
            f"update known to {np.median(width) if len(width) else 0:.1f} us (median)"
        )
    print(f"clock.tsv: {size / args.seconds / 1e3:.0f} kB/s")

    start = time.perf_counter()
    table, _ = clocks.build(polled)
    print(f"building the map: {time.perf_counter() - start:.3f} s, {table.num_rows} segments")
    clock_map = clocks.ClockMap(table)
    first, end = clock_map.range_tsc("realtime")
    tsc = np.linspace(first, end - 1, args.values).astype(np.int64)
    ns, error = clock_map.convert(tsc, "tsc", "realtime")
    n = args.values / 1e6
    for src, dst, values in (
        ("tsc", "realtime", tsc),
        ("realtime", "tsc", ns),
        ("realtime", "monotonic", ns),
    ):
        took = best(lambda src=src, dst=dst, values=values: clock_map.convert(values, src, dst))
        print(f"convert {src} to {dst}: {n / took:.1f} M/s (bound at most {error.max()} ns)")

    s = from_table(table)["realtime"]
    knots = np.append(s.tsc_start, s.tsc_end[-1] - 1)
    shown = np.append(s.ns(s.tsc_start, np.arange(len(s))), s.ns(knots[-1:], np.array([len(s) - 1])))
    took = best(lambda: np.interp(tsc, knots, shown))
    off = np.abs(np.interp(tsc, knots, shown).astype(np.int64) - ns)
    print(f"peer numpy.interp tsc to realtime: {n / took:.1f} M/s, off by up to {off.max()} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
