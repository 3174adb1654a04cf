# SPDX-License-Identifier: GPL-2.0-only
"""Performance counters between the marks of an interval equal what the kernel itself counted for the thread.

Virtual machines have no hardware counters; the kernel's count of page faults takes the same path.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import nsight_report
import pytest
from recorder_run import RECORDER, manifest, require_live
from test_intervals_live import compiled

pytestmark = pytest.mark.live

N = 400


def test_page_faults_between_marks_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    require_live()
    program, capture = compiled("interval_faults.c", tmp_path), tmp_path / "a.nsight"
    done = subprocess.run(
        [RECORDER, "-q", "--recorder", "bpf", "--mode", "tracepoints", "-o", capture, "--counters", "page-faults,cpu-clock",
         "--interval", f"usdt:{program}:nsight:step_begin..step_end", "--", program, str(N)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    told = [int(line.split()[2]) for line in done.stdout.splitlines() if len(line.split()) == 3]
    assert len(told) == N and min(told) >= 32
    assert manifest(capture)["counters"] == ["page-faults", "cpu-clock"]
    opened = nsight_report.open(capture, direction="interval", slow="p90-100", baseline="p0-50")
    counts = opened.message_counters
    counts = counts[(counts["counter"] == "page-faults").to_numpy(bool)].set_index("message_id")
    steps = opened.messages
    steps = steps[(steps["direction"] == "interval").to_numpy(bool)].sort_values("first_ns")
    of = dict(zip(steps["message_id"], told, strict=True))
    assert set(counts["role"].astype(str)) == {"slow", "baseline"}
    compared = [(of[number], count) for number, count in counts["count"].items()]
    # The rest fell into the time when an interrupt had the core, in proportion.
    close = [0.9 * expected <= count <= expected + 1 for expected, count in compared]
    assert sum(close) >= 0.9 * len(close), compared
    by_role = counts.groupby(counts["role"].astype(str))["count"].median()
    assert by_role["slow"] > 400 and by_role["baseline"] <= 33
