# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's memory work in a thread is recorded with both ends: it lies within the calls that caused it, and is most of their time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import nsight_report
import pandas as pd
import pytest
from machinery.testbed.limits import memory_group
from nsight_demo.processes import BedError
from nsight_report.tables.data_frames import to_pandas
from recorder_run import RECORDER, require_live

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.live]

#: The program's name for the work, and the table's.
WORK = {"reclaim": "memory reclaim", "compaction": "memory compaction", "migration": "page migration"}


def told(file: Path) -> pd.DataFrame:
    """What the program did: ``what``, ``begin``, ``end``, ``ran`` (ns on a core)."""
    return pd.read_csv(file, sep=" ", names=["what", "begin", "end", "ran"])


def found(capture: Path) -> pd.DataFrame:
    """Table ``memory_work``."""
    pipeline = nsight_report.open(capture).pipeline
    pipeline.run_for(["memory_work"])
    columns = ("cpu", "start_ns", "end_ns", "work")
    return pd.concat([to_pandas(part) for part in pipeline.stored("memory_work").batches(columns)])


def check(rows: pd.DataFrame, calls: pd.DataFrame, least: float = 0.5) -> None:
    """``rows`` of the table lie within ``calls`` of the program, and take at least the part ``least`` of their time on a core."""
    assert set(calls["what"]) <= set(WORK)
    for what, of in calls.groupby("what"):
        mine = rows[rows["work"] == WORK[str(what)]]
        inside = pd.concat([
            mine[(mine["start_ns"] >= call.begin) & (mine["end_ns"] <= call.end)] for call in of.itertuples()
        ])  # fmt: skip
        ns = (inside["end_ns"] - inside["start_ns"]).sum()
        # The rest is the way there and back, and releasing what each core holds.
        print(f"{what}: {ns / of['ran'].sum():.3f} of the time on a core")
        assert least * of["ran"].sum() <= ns <= (of["end"] - of["begin"]).sum(), (what, ns, of)


def test_reclaim_and_compaction_are_most_of_the_calls_that_ask_for_them(tmp_path: Path) -> None:
    require_live()
    capture, file = tmp_path / "a.nsight", tmp_path / "calls"
    command = [sys.executable, ROOT / "tests/record/memory_work.py", file]
    with contextlib.ExitStack() as stack:
        try:
            command.append(stack.enter_context(memory_group(256 << 20)).parent)
        except BedError as e:
            skip_or_fail("root", str(e))
        subprocess.run(
            [RECORDER, "-q", "--recorder", "bpf", "--mode", "tracepoints", "-o", capture, "--", *command],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    calls = told(file)
    assert set(calls["what"]) >= {"reclaim", "compaction"}
    check(found(capture), calls)
