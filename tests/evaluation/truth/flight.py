#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Test the flight recorder with stalls of a server, one in 10,000 requests: which stalls are in a window, and are named?

    .venv/bin/python tests/evaluation/truth/flight.py            100 stalls, four minutes, then a diagnosis of each window
    .venv/bin/python tests/evaluation/truth/flight.py -n 5 --every-ms 300

A stall is caught if a window contains all of it and one of the window's triggers is a message that waited during it.
It is named if the report's first cause of that window is the injected one. Exit codes: 0 both goals are met
(99 % of the stalls), 1 missed or failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "tools/nsight-demo")]

from machinery.testbed.bed import Testbed  # noqa: E402
from machinery.testbed.injections import Stop  # noqa: E402
from nsight_demo.logs import read_load  # noqa: E402
from nsight_demo.processes import BedError  # noqa: E402

from evaluation.truth.measure import RECORD, REPORT  # noqa: E402

GOAL = 0.99
CAUSE = "Application stopped (A)"
PER_SECOND = 5000
#: Trigger threshold, as a share of the stall's length.
THRESHOLD = 0.6
END_S = 120


@dataclass(frozen=True)
class Window:
    """One capture of the flight recorder; times are CLOCK_MONOTONIC ns, ``causes`` the report's, the largest first."""

    path: Path
    start: int
    stop: int
    triggers: list[dict[str, Any]]
    causes: list[str]


@dataclass(frozen=True)
class Result:
    """Numbers of stalls: all, those in a window, and among these, those named first and those named anywhere in the list.

    ``felt``: stalls for which the client's own log has a request that waited as long as the trigger's threshold;
    ``felt_caught``: how many of these are in a window.
    """

    stalls: int
    caught: int
    felt: int
    felt_caught: int
    first: int
    listed: int
    windows: int

    def lines(self) -> list[str]:
        """As readable text."""
        return [
            f"stalls {self.stalls}, windows {self.windows}",
            f"caught: {self.caught} ({self.caught / self.stalls:.1%})",
            f"of the {self.felt} that delayed a request, by the client's own log: {self.felt_caught}",
            f"named by the first cause: {self.first} ({self.first / self.stalls:.1%})",
            f"named in the list: {self.listed} ({self.listed / self.stalls:.1%})",
        ]


def fly(directory: Path, n: int, stop_ms: float, every_ms: float, rate: int) -> list[tuple[int, int]]:
    """Record some traffic with ``n`` stalls or a few more; returns their intervals."""
    injection = Stop(stop_ms, every_ms)
    with Testbed(realtime=True) as bed:
        server = bed.start_server("memcached")
        argv = [str(RECORD), "--flight", "-o", str(directory), "--port", str(server.port), "--cpus", "0"]
        argv += ["--trigger", f"latency={stop_ms * THRESHOLD:g}ms", "--before", "0.05", "--after", "0.02"]
        recorder = bed.start("nsight-record", [*argv, "--windows-per-hour", "3600"], grace_s=20)
        deadline = time.monotonic() + END_S
        while "flight recorder:" not in recorder.output():
            if time.monotonic() > deadline or recorder.poll() is not None:
                raise BedError(f"nsight-record did not begin: {recorder.output()}")
            time.sleep(0.05)
        seconds = n * every_ms * 1.02 / 1000
        load = bed.start_load(
            server, ["-c", "8", "-r", str(rate), "-d", f"{seconds:g}"], directory.parent / "load.tsv"
        )
        with injection.active(bed, server):
            load.wait(seconds + END_S)
        time.sleep(0.5)
        recorder.signal(signal.SIGTERM)
        recorder.wait(END_S)
        print(recorder.output().splitlines()[-3:], file=sys.stderr)
    return [(int(a), int(b)) for a, b in injection.intervals]


def diagnose(path: Path, stalls: list[tuple[int, int]]) -> Window:
    """A window, and the report about it if it contains a stall."""
    m = json.loads((path / "manifest.json").read_text())
    start, stop = m["start"]["monotonic_ns"], m["stop"]["monotonic_ns"]
    if not any(start <= begin and end <= stop for begin, end in stalls):
        return Window(path, start, stop, m["flight"]["triggers"], [])
    done = subprocess.run(
        [sys.executable, str(REPORT), str(path), "--json"], capture_output=True, text=True, timeout=END_S
    )
    causes = [c["cause"] for c in json.loads(done.stdout)["causes"]] if done.returncode == 0 else []
    if done.returncode:
        print(f"{path.name}: {done.stderr.strip()}", file=sys.stderr)
    return Window(path, start, stop, m["flight"]["triggers"], causes)


def felt(stalls: list[tuple[int, int]], log: Path, least_ns: float) -> list[bool]:
    """For each stall, whether a request was in flight ``least_ns`` before its end and was answered after it."""
    load = read_load(log)
    sent, answered = load["send_ns"].to_numpy(), load["recv_ns"].to_numpy()
    return [bool(((sent <= end - least_ns) & (answered >= end)).any()) for _, end in stalls]


def judge(stalls: list[tuple[int, int]], delayed: list[bool], windows: list[Window]) -> Result:
    """Compare the windows with the stalls."""
    caught = felt_caught = first = listed = 0
    for (begin, end), was_felt in zip(stalls, delayed):
        of = [
            w
            for w in windows
            if w.start <= begin
            and end <= w.stop
            and any(t["reason"] == "latency" and t["monotonic_ns"] - t["latency_ns"] < end <= t["monotonic_ns"]
                    for t in w.triggers)
        ]  # fmt: skip
        if not any(w.causes[:1] == [CAUSE] for w in of):
            told = "; ".join(f"{w.path.name}: {', '.join(w.causes[:3]) or 'no cause'}" for w in of)
            known = "" if was_felt else ", no request was delayed"
            print(f"stall at {begin} ns, {(end - begin) / 1e6:.1f} ms{known}: {told or 'no window'}")
        caught += bool(of)
        felt_caught += bool(of) and was_felt
        first += any(w.causes[:1] == [CAUSE] for w in of)
        listed += any(CAUSE in w.causes for w in of)
    return Result(len(stalls), caught, sum(delayed), felt_caught, first, listed, len(windows))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--stalls", type=int, default=100, help="about how many (default 100)")
    parser.add_argument("--stop-ms", type=float, default=5, help="length of a stall (default 5)")
    parser.add_argument("--every-ms", type=float, default=2000, help="time between stalls (default 2000)")
    parser.add_argument("--rate", type=int, default=PER_SECOND, help="requests a second (default 5000)")
    parser.add_argument("-o", "--output", type=Path, help="keep the windows in this new directory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-flight-") as scratch:
        directory = (args.output or Path(scratch)).resolve() / "windows"
        directory.parent.mkdir(parents=True, exist_ok=True)
        stalls = fly(directory, args.stalls, args.stop_ms, args.every_ms, args.rate)
        with ThreadPoolExecutor(2) as pool:
            windows = list(pool.map(partial(diagnose, stalls=stalls), sorted(directory.glob("*.nsight"))))
        delayed = felt(stalls, directory.parent / "load.tsv", args.stop_ms * THRESHOLD * 1e6)
        result = judge(stalls, delayed, windows)
    print("\n".join(result.lines()))
    met = min(result.caught, result.first) >= GOAL * result.stalls
    print(f"goal {GOAL:.0%}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
