# SPDX-License-Identifier: GPL-2.0-only
"""Memory work in mode tracepoints: faults last as the recorder measured or until the next event of their core, reclaim as measured."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, table
from nsight_report.anomalies import Recording, find
from nsight_report.attribution import attribute
from nsight_report.calls import memory_work
from nsight_report.capture.perf_data import CODE, EVENT
from nsight_report.losses import Ledger
from report.anomalies.test_causes import SLOWEST, SOFTIRQ, slow

CAUSE = "Page faults (A)"
IDLE = (0, "swapper")


def diagnose(scene: Scene, *rows: tuple[int, int, int], work: str = "page fault") -> dict[str, int]:
    """Causes by name; ``rows``: (cpu, start, end) of ``work``."""
    columns = [{"cpu": c, "start_ns": a, "end_ns": b, "work": work} for c, a, b in sorted(rows)]
    compared, found, *_ = find(Recording(*scene.tables(), memory_work=table("memory_work", columns)), SLOWEST)
    _, _, causes, _ = attribute(found, compared, SLOWEST)
    return {row["cause"]: row["total_deviation_ns"] for row in causes.to_pylist()}


def reads_for(own: int) -> tuple[Scene, int]:
    """40 usual messages that read for 400 ns, one that reads for ``own`` ns, and the time at which that one's read begins."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 600 + own, SOFTIRQ,
         [(0, 600, "idle", "idle", *IDLE), (600, 600 + own, "syscall", "read", TID, "server"),
          (600 + own, 20_000, "idle", "idle", *IDLE)],
         [(0, 600, "sleeping"), (600, 600 + own, "running"), (600 + own, 20_000, "sleeping")])  # fmt: skip
    return scene, t + 600


def test_faults_are_a_cause_and_the_rest_is_work():
    scene, begin = reads_for(1600)
    # Three faults of 300 ns; one on the other core, and one before the thread runs.
    mine = [(1, begin + n * 400, begin + n * 400 + 300) for n in range(3)]
    assert diagnose(scene, *mine, (0, begin, begin + 300), (1, begin - 300, begin)) == {
        CAUSE: 900,
        "Application processing (A)": 300,
    }


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        ("memory reclaim", "Memory reclaim (A)"),
        ("memory compaction", "Memory compaction (A)"),
        ("page migration", "NUMA balancing and page migration (A)"),
        ("page fault that was blocked", "Blocked on I/O or memory (A)"),
    ],
)
def test_what_both_ends_are_known_of_has_its_own_cause(work: str, cause: str):
    scene, begin = reads_for(1600)
    found = diagnose(scene, (1, begin + 100, begin + 1200), work=work)
    assert found == {cause: 1100, "Application processing (A)": 100}


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
    found = memory_work.table(
        SimpleNamespace(events=array), table("thread_states", []), takes, ledger
    ).to_pylist()
    (loss,) = ledger.table().to_pylist()
    key = "page_fault_ends_inferred" if found else "page_faults_without_length"
    assert (loss["key"], loss["count"]) == (key, sum("fault" in kind for kind, _, _ in events))
    return [(row["cpu"], row["start_ns"], row["end_ns"]) for row in found]


EVENTS = (
    ("page_fault_user", 1, 100),
    ("page_fault_kernel", 0, 110),
    ("page_fault_user", 1, 150),  # 50 after the previous one
    ("sched_switch", 0, 400),
    ("cpu_frequency", 0xFFFF, 410),  # not on a core
    ("page_fault_user", 1, 700),
)


def test_a_fault_lasts_as_measured_or_until_the_next_event_of_its_core():
    assert rows(80, *EVENTS) == [(0, 110, 190), (1, 100, 150), (1, 150, 230), (1, 700, 780)]


@pytest.mark.parametrize("takes", [None, 0, -5, 1.5, "80", 1 << 40])
def test_without_a_measured_time_nothing_is_claimed(takes: object):
    assert rows(takes, *EVENTS) == []


def test_recorder_measures_a_fault_of_this_machine():
    from nsight_record import host

    assert 0 < (host.page_fault_ns() or 0) <= memory_work.LONGEST_NS


def worked(
    states: list[tuple[int, int, int, int, str]],
    *events: tuple[str, int, int, int, int, int],
    ledger: Ledger | None = None,
) -> list[tuple[object, ...]]:
    """Rows of the table; ``states``: (tid, start, end, cpu, state), ``events``: (kind, cpu, ts, tid, a, b)."""
    array = np.zeros(len(events), EVENT)
    for event, row in zip(array, events, strict=True):
        event["kind"] = CODE[row[0]]
        for name, value in zip(("cpu", "ts", "tid", "a", "b"), row[1:], strict=True):
            event[name] = value
    keys = ("tid", "start_ns", "end_ns", "cpu", "state")
    of = table("thread_states", [dict(zip(keys, row, strict=True)) for row in states])
    found = memory_work.table(SimpleNamespace(events=array), of, 50, ledger or Ledger("calls"))
    return [tuple(row.values()) for row in found.to_pylist()]


def test_reclaim_counts_where_its_thread_had_a_core_and_is_part_of_no_fault():
    states = [
        (7, 0, 400, 1, "running"), (7, 400, 600, 1, "blocked"), (7, 600, 900, 0, "running"),
        (8, 400, 900, 1, "running"),
    ]  # fmt: skip
    # Thread 7 faults at 180 and reclaims from 200 to 700; meanwhile it sleeps and moves to core 0. Thread 8 faults on core 1.
    assert worked(
        states,
        ("page_fault_user", 1, 180, 7, 0, 0),
        ("page_fault_user", 1, 300, 7, 0, 0),
        ("page_fault_user", 1, 450, 8, 0, 0),
        ("memory_work", 0, 700, 7, 0, 500),
    ) == [
        (0, 600, 700, "memory reclaim"),
        (1, 180, 200, "page fault"),
        (1, 200, 400, "memory reclaim"),
        (1, 450, 500, "page fault"),
    ]


def test_work_of_one_thread_does_not_overlap_whatever_records_say():
    """Rows grow with the records, not with the pairs of a record and a turn of the thread."""
    turns = [(7, n * 100, n * 100 + 100, 1, "running") for n in range(40)]
    records = [("memory_work", 1, n * 100 + 50, 7, 1, n * 100 + 50) for n in range(40)]
    ledger = Ledger("calls")
    found = worked(turns, *records, ledger=ledger)
    assert len(found) == 79
    assert [(row["key"], row["count"]) for row in ledger.table().to_pylist()] == [
        ("memory_work_overlaps", 39)
    ]
    assert [row[1:3] for row in found[:3]] == [(0, 50), (50, 100), (100, 150)]


def blocked_fault(
    *events: tuple[str, int, int], work: tuple[int, int] = (0, 0)
) -> list[tuple[int, int, str]]:
    """Thread 7 runs on core 1 from 0 to 300 and from 400 to 1000, is blocked to 2000, and runs on. ``work``: reclaim that was measured."""
    made = [*((CODE[kind], 1, ts, number, 0) for kind, number, ts in events)]
    made += [(CODE["memory_work"], 1, work[1], 0, work[1] - work[0])] if work[1] else []
    array = np.zeros(len(made), EVENT)
    for event, (kind, cpu, ts, a, b) in zip(array, sorted(made, key=lambda e: e[2]), strict=True):
        event["kind"], event["cpu"], event["ts"], event["tid"], event["a"], event["b"] = (
            kind,
            cpu,
            ts,
            7,
            a,
            b,
        )
    spans = [
        (0, 300, "running"),
        (300, 400, "runnable"),
        (400, 1000, "running"),
        (1000, 2000, "blocked"),
        (2000, 3000, "running"),
    ]
    states = [{"tid": 7, "cpu": 1, "start_ns": a, "end_ns": b, "state": state} for a, b, state in spans]
    found = memory_work.table(
        SimpleNamespace(events=array), table("thread_states", states), 20, Ledger("calls")
    )
    return [(row["start_ns"], row["end_ns"], row["work"]) for row in found.to_pylist()]


BLOCKED = "page fault that was blocked"


def test_a_fault_lasts_until_its_thread_is_blocked_in_it_without_the_time_off_its_core():
    assert blocked_fault(("page_fault_user", 0, 900)) == [(900, 1000, BLOCKED)]
    assert blocked_fault(("page_fault_user", 0, 200)) == [(200, 300, BLOCKED), (400, 1000, BLOCKED)]


def test_reclaim_inside_of_a_fault_is_counted_once():
    fault = ("page_fault_user", 0, 200)
    assert blocked_fault(fault, work=(500, 700)) == [
        (200, 300, BLOCKED), (400, 500, BLOCKED), (500, 700, "memory reclaim"), (700, 1000, BLOCKED)
    ]  # fmt: skip
    # From before the change of threads to after it.
    assert blocked_fault(fault, work=(250, 700)) == [
        (200, 250, BLOCKED), (250, 300, "memory reclaim"), (400, 700, "memory reclaim"), (700, 1000, BLOCKED)
    ]  # fmt: skip


def test_a_fault_after_which_the_thread_entered_something_else_has_the_length_that_was_measured():
    """It is blocked in the system call, or in the second fault."""
    assert blocked_fault(("page_fault_user", 0, 500), ("sys_enter", 0, 900)) == [(500, 520, "page fault")]
    assert blocked_fault(("page_fault_user", 0, 500), ("page_fault_user", 0, 900)) == [
        (500, 520, "page fault"),
        (900, 1000, BLOCKED),
    ]
