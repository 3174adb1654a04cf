# SPDX-License-Identifier: GPL-2.0-only
"""Page faults in mode tracepoints: each lasts as long as the recorder measured, or until the next event of its core."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, table
from nsight_report.anomalies import Recording, find
from nsight_report.attribution import attribute
from nsight_report.calls import faults
from nsight_report.capture.perf_data import CODE, EVENT
from nsight_report.losses import Ledger
from report.anomalies.test_causes import SLOWEST, SOFTIRQ, slow

CAUSE = "Page faults (A)"
IDLE = (0, "swapper")


def diagnose(scene: Scene, *rows: tuple[int, int, int]) -> dict[str, int]:
    """Causes by name; ``rows``: (cpu, start, end) of faults."""
    found_of = table("page_faults", [{"cpu": c, "start_ns": a, "end_ns": b} for c, a, b in sorted(rows)])
    compared, found, _ = find(Recording(*scene.tables(), page_faults=found_of), SLOWEST)
    _, _, causes, _ = attribute(found, compared, SLOWEST)
    return {row["cause"]: row["total_deviation_ns"] for row in causes.to_pylist()}


def reads_for(own: int) -> tuple[Scene, int]:
    """40 usual messages that read for 400 ns, one that does for ``own``, and when that one does."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 600 + own, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 600 + own, "syscall", "read", TID, "server"),
          (600 + own, 20_000, "idle", "idle", *IDLE)],
         [(0, 600, "sleeping"), (600, 600 + own, "running"), (600 + own, 20_000, "sleeping")])  # fmt: skip
    return scene, t + 600


def test_faults_are_a_cause_and_the_rest_is_work():
    scene, begin = reads_for(1600)
    # Three of 300 ns; one on the other core, and one before the thread runs.
    mine = [(1, begin + n * 400, begin + n * 400 + 300) for n in range(3)]
    assert diagnose(scene, *mine, (0, begin, begin + 300), (1, begin - 300, begin)) == {
        CAUSE: 900,
        "Application processing (A)": 300,
    }


def test_faults_that_every_message_has_are_usual():
    scene, begin = reads_for(1600)
    usual = [(1, n * 10_000 + 650, n * 10_000 + 850) for n in range(40)]
    assert diagnose(scene, *usual, (1, begin, begin + 200)) == {"Application processing (A)": 1200}


def test_faults_of_another_program_are_its_time():
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "thread", "hog", 50, "hog"), (5600, 6500, "syscall", "read", TID, "server")],
         [(0, 600, "sleeping"), (600, 5600, "runnable"), (5600, 6500, "running")])  # fmt: skip
    assert diagnose(scene, (1, t + 1000, t + 4000)) == {"hog (A)": 5000}


def rows(takes: object, *events: tuple[str, int, int]) -> list[tuple[int, int, int]]:
    array = np.zeros(len(events), EVENT)
    for event, (kind, cpu, ts) in zip(array, events, strict=True):
        event["kind"], event["cpu"], event["ts"] = CODE[kind], cpu, ts
    ledger = Ledger("calls")
    found = faults.table(SimpleNamespace(events=array), takes, ledger).to_pylist()
    (loss,) = ledger.table().to_pylist()
    key = "page_fault_ends_inferred" if found else "page_faults_without_length"
    assert (loss["key"], loss["count"]) == (key, sum("fault" in kind for kind, _, _ in events))
    return [(row["cpu"], row["start_ns"], row["end_ns"]) for row in found]


EVENTS = (
    ("page_fault_user", 1, 100),
    ("page_fault_kernel", 0, 110),
    ("page_fault_user", 1, 150),  # 50 after the one before
    ("sched_switch", 0, 400),
    ("cpu_frequency", 0xFFFF, 410),  # of no core
    ("page_fault_user", 1, 700),
)


def test_a_fault_lasts_as_measured_or_until_the_next_event_of_its_core():
    assert rows(80, *EVENTS) == [(0, 110, 190), (1, 100, 150), (1, 150, 230), (1, 700, 780)]


@pytest.mark.parametrize("takes", [None, 0, -5, 1.5, "80", 1 << 40])
def test_without_a_measured_time_nothing_is_claimed(takes: object):
    assert rows(takes, *EVENTS) == []


def test_recorder_measures_a_fault_of_this_machine():
    from nsight_record import host

    assert 0 < (host.page_fault_ns() or 0) <= faults.LONGEST_NS
