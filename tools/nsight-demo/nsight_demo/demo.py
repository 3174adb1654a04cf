# SPDX-License-Identifier: GPL-2.0-only
"""The demo: memcached's tail latency, disturbed by a program called hog, and what NSight reports about it.

Starts memcached in one network namespace and a load client in another, lets the hog take
turns on memcached's core, records, and prints the diagnosis and where the report is.
Everything that it started is removed afterwards, also after Ctrl-C; the capture and the
report stay.

Exit codes: 0; 1 something failed; 2 usage; 4 root or a program is missing; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from .bed import HOG, Bed, on_path
from .logs import overlap_ns, read_intervals
from .processes import BedError
from .servers import KINDS

ROOT = Path(__file__).resolve().parents[3]

RECORD = ROOT / "tools" / "nsight-record" / "nsight-record"
REPORT = ROOT / "tools" / "nsight-report" / "nsight-report"
PROGRAMS = ("memcached", "perf", "bpftrace", "ip", "ss", "nsenter", "setpriv", "taskset", "make", "gcc")
BURN_US, IDLE_US = 8000, 12000
RATE = 2000


class Steps:
    """Numbered progress lines on stderr, each with the time since the start."""

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self._step = 0
        self._start = time.monotonic()

    def begin(self, text: str) -> None:
        """Announce the next step."""
        self._step += 1
        elapsed = time.monotonic() - self._start
        print(f"[{self._step}/{self._n_steps} {elapsed:5.1f} s] {text}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-d", "--seconds", type=float, default=5, help="length of the recording (default 5)")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "build" / "demo", help="directory for capture and report"
    )
    usual = KINDS["memcached"].port
    parser.add_argument(
        "-p", "--port", type=int, default=usual, help=f"memcached's, in its namespace (default {usual})"
    )
    args = parser.parse_args()
    if not 1 <= args.port <= 65535:
        parser.error(f"--port {args.port} is not between 1 and 65535")
    if not 0.5 <= args.seconds <= 600:
        parser.error(f"--seconds {args.seconds:g} is not between 0.5 and 600")
    return args


def preflight() -> str | None:
    """What is missing, with the fix; None when nothing is."""
    if os.geteuid():
        return "error: the demo makes network namespaces and records the whole machine, which needs root\nhint: sudo make demo"
    missing = [name for name in PROGRAMS if not on_path(name)]
    if missing:
        return f"error: not installed: {' '.join(missing)}\nhint: make deps-demo"
    if os.cpu_count() == 1:
        return "error: the demo needs two cores, this machine has one\nhint: give the virtual machine a second core"
    return None


def truth_line(hogged: np.ndarray, capture: Path, port: int) -> str:
    """What really happened: the hog's own log against the slowest 1 % of the messages."""
    table = pd.read_parquet(capture / "tables" / "messages.parquet")
    table = table[(table.direction == "rx") & (table.lport == port)]
    slow = table[table.latency_ns >= table.latency_ns.quantile(0.99)]
    met = overlap_ns(slow.first_ns.to_numpy(), slow.last_ns.to_numpy(), hogged)
    return (
        f"What was injected: hog burned memcached's core for {BURN_US // 1000} ms of every "
        f"{(BURN_US + IDLE_US) // 1000} ms.\n"
        f"By its own log it ran during {(met > 0).mean():.0%} of the slowest 1 % of the messages and took "
        f"{met.sum() / slow.latency_ns.sum():.0%} of their time."
    )


def demo(args: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    steps = Steps(4)
    args.output.mkdir(parents=True, exist_ok=True)
    capture, report, load_log = args.output / "demo.nsight", args.output / "report", args.output / "load.tsv"
    shutil.rmtree(report, ignore_errors=True)
    with Bed() as bed:
        steps.begin("memcached and a load client in network namespaces, cores 1 and 0")
        server = bed.start_server("memcached", args.port)
        load = bed.start_load(server, ["-c", "8", "-r", str(RATE), "-d", "3600"], load_log)
        burns = ["-C", str(bed.app_cpu), "-b", str(BURN_US), "-i", str(IDLE_US)]
        hog_log = bed.directory / "hog.tsv"
        hog = bed.start("hog", [str(HOG), "-l", str(hog_log), *burns], creates=hog_log)
        steps.begin(f"hog takes turns on memcached's core; recording {args.seconds:g} s")
        argv = [str(RECORD), "-d", f"{args.seconds:g}", "-o", str(capture), "-f", "--port", str(server.port)]
        # tracefs is not mounted everywhere; it is unmounted again.
        argv += ["--fix", "--rx", "--cpus", str(bed.load_cpu)]
        recorder = bed.start("nsight-record", argv, on_terminal=True, grace_s=20)
        if recorder.wait(args.seconds + 600):
            return 1
        for process in (hog, load):
            process.check_alive()
            process.signal(signal.SIGTERM)
            process.wait()
        hogged = read_intervals(hog_log)
        steps.begin("analysing")
        analysis = bed.start(
            "nsight-report", [str(REPORT), str(capture), "-o", str(report)], on_terminal=True
        )
        if analysis.wait(600):
            return 1
        steps.begin("done; namespaces and processes are removed")
    print(f"\n{truth_line(hogged, capture, server.port)}\n")
    print(f"Report:  {report / 'report.html'}\nCapture: {capture}")
    return 0


def main() -> int:
    """Entry point."""
    args = parse()
    problem = preflight()
    if problem:
        print(problem, file=sys.stderr)
        return 4
    try:
        return demo(args)
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was left running", file=sys.stderr)
        return 130
