# SPDX-License-Identifier: GPL-2.0-only
"""The cost of the recording itself is identified by its processes, whatever their threads are called."""

from __future__ import annotations

from typing import Any

import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID
from nsight_report.anomalies import Recording, find
from nsight_report.attribution import attribute
from nsight_report.manifest import Manifest
from nsight_report.recorder import Recorder
from report.anomalies.test_causes import SLOWEST, SOFTIRQ, slow

TOOLS = {"perf": {"pid": 50}, "clock": {"pid": 51}}


def causes(name: str, pid: int, recorder: Recorder) -> list[str]:
    """Causes of a message that waited for 5000 ns while this thread had the core."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", name, pid, name), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    compared, found, *_ = find(Recording(*scene.tables(), recorder=recorder), SLOWEST)
    anomalies, _, table, _ = attribute(found, compared, SLOWEST)
    (subject,) = set(anomalies["subject"].to_pylist())
    assert subject in (name, f"{name} (this recording)")
    return [row["cause"] for row in table.to_pylist()]


def of(**raw: Any) -> Recorder:
    return Recorder.of(Manifest("tracepoints", False, raw))


@pytest.mark.parametrize("name", ["perf", "bpftrace", "nsight-collect", "sh"])
def test_a_process_of_the_recorder_is_its_cost_and_another_of_that_name_is_not(name: str) -> None:
    recorder = of(recorder_pid=49, tools=TOOLS)
    for pid in (49, 50, 51):
        assert causes(name, pid, recorder) == ["NSight's own cost (A)"]
    assert causes(name, 52, recorder) == [f"{name} (A)"]


def test_without_the_recorders_processes_nothing_is_its_cost() -> None:
    assert causes("perf", 50, of()) == ["perf (A)"]


def test_of_an_import_perf_is_the_recorder() -> None:
    recorder = of(imported={"from": "perf.data"})
    assert causes("perf", 50, recorder) == ["NSight's own cost (A)"]
    assert causes("bpftrace", 50, recorder) == ["bpftrace (A)"]


def test_no_thread_can_call_itself_the_recording() -> None:
    longest = "x" * 15  # TASK_COMM_LEN, including the final NUL
    assert len(" (this recording)") > len(longest)


@pytest.mark.parametrize("raw", [
    {"recorder_pid": "49", "tools": {"perf": {"pid": None}, "x": 7}}, {"tools": [50]}, {"recorder_pid": -1},
    {"recorder_pid": 1 << 40, "imported": 3}, {"tools": {str(i): {"pid": i} for i in range(5000)}},
])  # fmt: skip
def test_manifests_of_any_shape_are_read(raw: dict[str, Any]) -> None:
    found = of(**raw)
    assert len(found.pids) <= 1000
    assert all(0 < pid < 1 << 31 for pid in found.pids)
