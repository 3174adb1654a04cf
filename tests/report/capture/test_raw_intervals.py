# SPDX-License-Identifier: GPL-2.0-only
"""Intervals of threads made from records (thread, core, begin, end), and records that cannot be an interval."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

from machinery.made_up import record_files as rf
from nsight_report.capture import native, raw_records

TASKS = rf.whole(rf.NO_CPU, rf.task(1, 7, 6, b"engine"))


def found(records: Path) -> list[tuple[Any, ...]]:
    """(start, stop, process, thread, its name, core, number) of each."""
    return [
        (*map(int, (row["start"], row["stop"], row["pid"], row["tid"])), names[row["comm"]], int(row["cpu"]), int(row["name"]))
        for some, names in raw_records.intervals(records)
        for row in some
    ]  # fmt: skip


def losses(records: Path, to: Path) -> dict[str, int]:
    to.mkdir()
    subprocess.run([native.find("nsight-rawdata"), records, to], check=True, timeout=60)
    told: dict[str, int] = json.loads((to / "perf-events.json").read_text())["losses"]
    return {key: n for key, n in told.items() if n}


def test_an_interval_is_its_threads_and_of_the_core_of_its_end(tmp_path: Path) -> None:
    first, second = rf.interval(9_500, 10_000, 7, 0), rf.interval(9_900, 10_100, 7, 3)
    strange = rf.interval(20_000, 20_001, 99, 1)
    records = rf.write(tmp_path, TASKS, cpu0=rf.whole(0, first + second), cpu2=rf.whole(2, strange))
    assert found(records) == [
        (9_500, 10_000, 6, 7, "engine", 0, 0),
        (9_900, 10_100, 6, 7, "engine", 0, 3),
        (20_000, 20_001, -1, 99, "", 2, 1),
    ]
    assert losses(records, tmp_path / "out") == {}


def test_who_began_it_where_and_when_that_handed_it_over_are_told(tmp_path: Path) -> None:
    handed = rf.interval(9_500, 10_000, 7, 0, begun_by=4_194_303, on=65_535, handover=9_600)
    kept = rf.interval(9_500, 10_001, 7, 0, begun_by=8, on=1)
    at_once = rf.interval(9_500, 10_002, 7, 0, begun_by=8, handover=9_500)
    late = rf.interval(9_500, 10_003, 7, 0, begun_by=8, handover=10_004)  # after its end
    records = rf.write(tmp_path, TASKS, cpu0=rf.whole(0, handed + kept + at_once + late))
    rows = [row for some, _ in raw_records.intervals(records) for row in some]
    told = [tuple(int(row[of]) for of in ("begin_tid", "begin_cpu", "handover")) for row in rows]
    assert told == [(4_194_303, 65_535, 9_600), (8, 1, 0), (8, 0, 9_500), (8, 0, 0)]


def test_activity_and_messages_come_without_them(tmp_path: Path) -> None:
    both = rf.interval(9_500, 10_000, 7, 0) + rf.message("A", 10_200)
    records = rf.write(tmp_path, TASKS, cpu0=rf.whole(0, both))
    _, stamps, info = rf.decode(records, tmp_path / "out")
    assert (len(stamps), info["n_messages"], info["n_intervals"]) == (1, 1, 1)
    assert (tmp_path / "out/intervals.bin").stat().st_size == 48
    _, _, without = rf.decode(rf.write(tmp_path / "none", TASKS, cpu0=rf.whole(0, b"")), tmp_path / "b")
    assert info["n_events"] == without["n_events"]


def test_an_interval_that_cannot_be_is_counted_and_left_out(tmp_path: Path) -> None:
    # Longer than the machine's uptime, of the idle thread, and longer than a record can hold.
    before, idle = rf.interval(0, 10_000, 7, 0), rf.interval(9_500, 10_000, 0, 0)
    long = struct.unpack("<4Q", rf.interval(1, 1 << 42, 7, 0))
    records = rf.write(tmp_path, TASKS, cpu0=rf.header(0) + rf.block(before + idle, 10_000) + rf.block(
        struct.pack("<4Q", *long), 1 << 42, number=4) + rf.counts(1 << 42, {rf.TYPE["INTERVAL"]: (3, 0)}))  # fmt: skip
    assert [row[:2] for row in found(records)] == [((1 << 42) - rf.SATURATED, 1 << 42)]
    assert losses(records, tmp_path / "out") == {"malformed": 2, "saturated": 1}
