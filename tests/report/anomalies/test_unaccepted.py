# SPDX-License-Identifier: GPL-2.0-only
"""Messages that arrived before their connection was accepted."""

from __future__ import annotations

import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import PID, TID, state, syscall
from report.anomalies.test_causes import SOFTIRQ, diagnose, slow

CAUSE = "Accept queue (A)"
WORKER = 200
IDLE = (0, "swapper")


def late(place: str | None, unaccepted: bool = True) -> Scene:
    """Usual messages, and one that another thread reads at 6000. Until 5600 that thread is in the call ``place``, or does not exist."""
    scene = Scene()
    t = scene.quiet(40)
    slow(scene, t, 500, 6000, SOFTIRQ,
         [(0, 5600, "idle", "idle", *IDLE), (5600, 6500, "syscall", "read", WORKER, "server"),
          (6500, 20_000, "idle", "idle", *IDLE)], [])  # fmt: skip
    scene.messages[-1] |= {"tid": WORKER, "unaccepted": unaccepted}
    if place:
        scene.states.append(state(t - 5000, t + 5600, "sleeping", tid=WORKER))
        scene.calls.append(syscall(WORKER, t - 5000, t + 5600, place))
    scene.states.append(state(t + 5600, t + 6500, "running", tid=WORKER))
    scene.states.append(state(t, t + 20_000, "sleeping", tid=TID))
    scene.calls.append(syscall(WORKER, t + 5800, t + 6000, "read"))
    return scene


@pytest.mark.parametrize("place", [None, "futex", "epoll_wait", "read"])
def test_a_reader_that_is_not_there_or_waits_for_work_is_in_the_accept_queue(place: str | None):
    result, causes = diagnose(late(place))
    # From the hand-off at 500 to 5600, when the thread runs; the usual wake-up takes 100.
    assert causes[CAUSE]["total_deviation_ns"] == pytest.approx(5000, abs=150)
    assert list(causes) == [CAUSE]
    assert result.coverage["coverage"].to_pylist() == [1.0]


def test_what_the_reader_did_meanwhile_is_the_cause():
    _, causes = diagnose(late("clock_nanosleep"))
    assert list(causes) == ["Application sleeps (A)"]


def test_a_connection_that_was_accepted_waits_for_its_reader():
    _, causes = diagnose(late("futex", unaccepted=False))
    assert CAUSE not in causes
    _, causes = diagnose(late(None, unaccepted=False))
    assert CAUSE not in causes


def test_a_thread_that_was_there_before_is_not_taken_for_a_new_one():
    """Its events were lost for a while, so it is not known whether it waited for work."""
    scene = late(None)
    t = scene.messages[-1]["first_ns"]
    scene.states.append(state(t - 5000, t + 5600, "unknown", tid=WORKER))
    _, causes = diagnose(scene)
    assert CAUSE not in causes


@pytest.mark.parametrize(("process", "from_hog"), [(PID, 4000), (9, 0)])
def test_an_accepting_thread_that_waits_for_its_core_waits_for_what_runs_there(
    process: int, from_hog: int
) -> None:
    """It is ready from 600 on and runs from 4600 to 5600; then it wakes the reader. A thread of another process did not accept."""
    scene = late("futex")
    t = scene.messages[-1]["first_ns"]
    scene.messages[-1]["handoff_ns"] = t + 500
    accepter = {"tid": 210, "pid": process}
    scene.states[-2] |= {"start_ns": t + 5700}  # the reader runs
    scene.states += [
        state(t + 5600, t + 5700, "runnable", tid=WORKER) | {"waker_tid": 210},
        state(t - 5000, t + 600, "sleeping") | accepter,
        state(t + 600, t + 4600, "runnable") | accepter,
        state(t + 4600, t + 20_000, "running") | accepter,
    ]
    scene.contexts = [
        row | {"kind": "thread", "symbol": "hog", "tid": 300, "pid": 300, "comm": "hog"}
        if row["kind"] == "idle" and row["start_ns"] == t and row["end_ns"] == t + 5600
        else row
        for row in scene.contexts
    ]
    _, causes = diagnose(scene)
    assert causes.get("hog (A)", {"total_deviation_ns": 0})["total_deviation_ns"] == pytest.approx(
        from_hog, abs=150
    )
    assert causes[CAUSE]["total_deviation_ns"] == pytest.approx(5000 - from_hog, abs=150)
