# SPDX-License-Identifier: GPL-2.0-only
"""Speed of the conversion from perf.data to tables, compared with perf's own ways of reading the same file in the same run.

    .venv/bin/python tests/evaluation/bench/bench_perfdata.py [--events N] [PERF_DATA]

Without a file, one is recorded from `perf bench sched pipe` (root and perf needed). The aim is
2 000 000 events, decoded and converted to calls, contexts and thread_states, in at most 5 s on
two cores; for other files it is scaled by the number of events. Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools" / "nsight-report"))

from nsight_report import calls  # noqa: E402
from nsight_report.capture import perf_data  # noqa: E402

AIM_SECONDS_PER_EVENT = 5.0 / 2_000_000

EVENTS = (
    "sched:sched_switch",
    "sched:sched_waking",
    "sched:sched_wakeup",
    "sched:sched_migrate_task",
    "irq:softirq_entry",
    "irq:softirq_exit",
    "irq_vectors:local_timer_entry",
    "irq_vectors:local_timer_exit",
    "irq_vectors:reschedule_entry",
    "irq_vectors:reschedule_exit",
    "power:cpu_idle",
)
# perf calls process_event() only for events other than tracepoints. For tracepoints it calls one
# function per tracepoint, or else this one
NO_OP = "def trace_unhandled(name, context, fields, sample):\n    pass\n"


def record(path: Path, n_events: int) -> None:
    """Record about ``n_events``: one round of the pipe benchmark makes about twelve events."""
    argv = ["perf", "record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-m", "4096", "-o", str(path)]
    for event in EVENTS:
        argv += ["-e", event]
    for side in ("enter", "exit"):  # perf's own writes would feed back on themselves
        argv += ["-e", f"raw_syscalls:sys_{side}", "--exclude-perf"]
    argv += ["--", "perf", "bench", "sched", "pipe", "-l", str(n_events // 12)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def seconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes; the better of two runs."""
    best = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def peer(argv: list[str]) -> float:
    """Seconds of a perf command whose output is discarded."""
    return seconds(
        lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    )


def measure(path: Path, directory: Path) -> bool:
    """Measure, print, and say whether the aim was met."""
    script = directory / "no_op.py"
    script.write_text(NO_OP)
    decoded, _ = perf_data.load(path)
    n_events = len(decoded.events)
    load = seconds(lambda: perf_data.load(path))
    build = seconds(lambda: calls.build(decoded))
    text = peer(["perf", "script", "-i", str(path)])
    python = peer(["perf", "script", "-i", str(path), "-s", str(script)])
    total = load + build
    print(f"{n_events} events, {path.stat().st_size >> 20} MiB, lost {decoded.info['losses']['lost_events']}")
    print(f"{'what':44} {'s':>8} {'us/event':>9} {'x ours':>7}")
    for what, spent in (
        ("perf_data.load (decode)", load),
        ("calls.build (contexts, thread states)", build),
        ("ours: both", total),
        ("perf script, text", text),
        ("perf script -s, no-op function", python),
    ):
        print(f"{what:44} {spent:8.2f} {spent / n_events * 1e6:9.2f} {spent / total:7.1f}")
    scaled = total / n_events * 2_000_000
    met = total <= AIM_SECONDS_PER_EVENT * n_events
    print(f"2 000 000 events would take {scaled:.2f} s; aim 5 s: {'met' if met else 'MISSED'}")
    return met


def main() -> int:
    """Parse arguments, record if need be, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="PERF_DATA")
    parser.add_argument("--events", type=int, default=2_000_000, help="how many to record (default: 2000000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as directory:
        path = options.file or Path(directory, "perf.data")
        if options.file is None:
            record(path, options.events)
        return 0 if measure(path, Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
