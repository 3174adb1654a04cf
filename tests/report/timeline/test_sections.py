# SPDX-License-Identifier: GPL-2.0-only
"""Which core counts in which part of a lifetime, also for packets that two cores handled."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machinery.made_up.tables import context, message, table
from nsight_report.tables.data_frames import to_pandas
from nsight_report.tables.intervals import IntervalTable
from nsight_report.timeline import A, Detours, Place, detours, sections
from nsight_report.timeline.pieces import pieces, threads_of

#: NIC at 1,000, arrival at 1,400 on core 0, hand-off at 2,000, read at 5,000 on core 1 by process 100.
STAMPS = {"arrival_ns": 1400, "arrival_last_ns": 1400}


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    return to_pandas(table("messages", list(rows)))


def received(**over: object) -> pd.DataFrame:
    return frame(message(0, 1000, 2000, 5000, **STAMPS, **over))


def sent(**over: object) -> pd.DataFrame:
    """Send call at 1,000, returns at 2,000 on core 1, driver at 3,000 on core 0, completion at 4,000."""
    row = {"direction": "tx", "nic_ns": None, "arrival_ns": None, "arrival_last_ns": None, "handoff_ns": None,
           "handoff_cpu": None, "call_ns": 1000, "app_ns": 2000, "driver_ns": 3000, "completion_ns": 4000,
           "last_ns": 4000, "latency_ns": 3000}  # fmt: skip
    return frame(message(0, 1000, 2000, 4000, **{**row, **over}))


def told(messages: pd.DataFrame, found: Detours | None = None) -> list[tuple[str, int, int, int]]:
    parts = sections(messages, found)
    columns = (parts.place.tolist(), parts.cpu.tolist(), parts.start.tolist(), parts.end.tolist())
    return [(Place(place).name, *rest) for place, *rest in zip(*columns, strict=True)]


def contexts(*rows: tuple[int, int, int, str, int], of: int = -1) -> IntervalTable:
    """(cpu, start, end, kind, process); ``of``: the call that contains all softirqs."""
    made = [context(cpu, start, end, kind, "", pid, "") for cpu, start, end, kind, pid in rows]
    for row in made:
        row["call_id"] = of if row["kind"] == "softirq" else -1
    return IntervalTable(table("contexts", made))


def test_handed_off_where_it_arrived() -> None:
    assert told(received()) == [("RECEIVE", 0, 1000, 2000), ("APPLICATION", 1, 2000, 5000)]


def test_steered_the_second_core_counts_from_when_the_first_one_had_it() -> None:
    assert told(received(handoff_cpu=2)) == [
        ("RECEIVE", 0, 1000, 1400),
        ("SECOND_CORE", 2, 1400, 2000),
        ("APPLICATION", 1, 2000, 5000),
    ]


@pytest.mark.parametrize(("ends", "left"), [(1700, 1700), (1400, 1400), (9000, 2000)])
def test_the_first_core_counts_to_the_end_of_its_softirq_which_sends_the_interrupt(
    ends: int, left: int
) -> None:
    steered = received(handoff_cpu=2)
    stored = contexts((0, 1300, ends, "softirq", 0), (2, 1900, 2100, "softirq", 0))
    expected = [("RECEIVE", 0, 1000, left), ("SECOND_CORE", 2, left, 2000), ("APPLICATION", 1, 2000, 5000)]
    assert told(steered, detours(steered, stored)) == [part for part in expected if part[2] < part[3]]


def test_a_softirq_that_was_interrupted_ends_with_its_last_part() -> None:
    steered = received(handoff_cpu=2)
    stored = contexts(
        (0, 1300, 1500, "softirq", 0), (0, 1500, 1600, "hardirq", 0), (0, 1600, 1800, "softirq", 0), of=9
    )
    assert detours(steered, stored).left_ns.tolist() == [-1]  # nothing shows what handed it off
    stored = contexts(
        (0, 1300, 1500, "softirq", 0), (0, 1500, 1600, "hardirq", 0), (0, 1600, 1800, "softirq", 0),
        (2, 1900, 2100, "softirq", 0), of=9,
    )  # fmt: skip
    assert detours(steered, stored).left_ns.tolist() == [1800]


def test_the_application_that_had_locked_the_socket_has_it_from_the_end_of_the_softirq() -> None:
    for core in (0, 1):  # for any core on which the thread that unlocked it ran
        waited = received(handoff_cpu=core)
        stored = contexts((0, 1300, 1500, "softirq", 0), (core, 1600, 3000, "syscall", 100))
        found = detours(waited, stored)
        assert found.in_backlog.tolist() == [True]
        assert told(waited, found) == [
            ("RECEIVE", 0, 1000, 1500),
            ("BACKLOG", core, 1500, 2000),
            ("APPLICATION", 1, 2000, 5000),
        ]
        assert sections(waited, found).side.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("kind", "pid"), [("thread", 55), ("softirq", 100), ("idle", 0)])
def test_a_polling_thread_or_a_softirq_above_the_application_is_no_backlog(kind: str, pid: int) -> None:
    messages = received()
    found = detours(messages, contexts((0, 1300, 2100, kind, pid)))
    assert not found.in_backlog.any()
    assert told(messages, found) == [("RECEIVE", 0, 1000, 2000), ("APPLICATION", 1, 2000, 5000)]


def test_sent_by_the_thread_then_queued_then_in_the_driver() -> None:
    assert told(sent()) == [
        ("APPLICATION", 1, 1000, 2000),
        ("TRANSMIT_QUEUE", 0, 2000, 3000),
        ("DRIVER", 0, 3000, 4000),
    ]
    # What is known of the queue discipline is the last part of the way; it is no more than the way.
    assert told(sent(qdisc_dur_ns=300))[1:3] == [
        ("TRANSMIT_QUEUE", 0, 2000, 2700),
        ("QUEUE_DISCIPLINE", 0, 2700, 3000),
    ]
    assert told(sent(qdisc_dur_ns=1100))[1:2] == [("QUEUE_DISCIPLINE", 0, 2000, 3000)]
    # A send that reaches the driver before the call returns waits nowhere.
    assert told(sent(app_ns=3500)) == [("APPLICATION", 1, 1000, 3000), ("DRIVER", 0, 3000, 4000)]


def interval(**over: object) -> pd.DataFrame:
    """Thread 7 on core 1 from 1,000 to 4,000."""
    return sent(
        **{
            "direction": "interval",
            "driver_ns": None,
            "completion_ns": None,
            "app_ns": 4000,
            "recv_cpu": None,
            "tid": 7,
            **over,
        }
    )


def test_an_interval_is_its_threads_and_before_the_hand_over_the_one_s_that_began_it() -> None:
    assert told(interval()) == [("APPLICATION", 1, 1000, 4000)]
    handed = interval(begin_tid=8, handoff_ns=1500, recv_cpu=0)
    assert told(handed) == [("BEGINNER", 0, 1000, 1500), ("APPLICATION", 1, 1500, 4000)]
    assert sections(handed).side.tolist() == [A, A]
    nothing_known = pd.DataFrame({name: [] for name in ("tid", "start_ns", "end_ns", "state", "cpu")})
    parts = pieces(handed, np.array([0]), nothing_known)
    assert sorted(zip(parts.start.tolist(), parts.tid.tolist(), strict=True)) == [(1000, 8), (1500, 7)]
    assert sorted(zip(*(values.tolist() for values in threads_of(handed)), strict=True)) == [
        (7, 1500, 4000),
        (8, 1000, 1500),
    ]
    # The time of the hand-over is missing, or the thread that began it.
    assert told(interval(begin_tid=8, recv_cpu=0)) == [("APPLICATION", 1, 1000, 4000)]
    assert told(interval(handoff_ns=1500)) == [("APPLICATION", 1, 1000, 4000)]


_TIME = st.one_of(st.none(), st.integers(0, 50))
_CORE = st.one_of(st.none(), st.integers(0, 2))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "direction": st.sampled_from(["rx", "tx", "interval"]),
                "first_ns": st.integers(0, 20),
                "last_ns": st.integers(20, 50),
                **dict.fromkeys(
                    ["arrival_ns", "arrival_last_ns", "handoff_ns", "app_ns", "driver_ns", "qdisc_dur_ns"],
                    _TIME,
                ),
                **dict.fromkeys(["recv_cpu", "handoff_cpu", "app_cpu"], _CORE),
                "tid": st.just(7),
                "begin_tid": st.one_of(st.none(), st.just(8)),
            }
        ),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_sections_tile_every_lifetime_whatever_is_missing(rows: list[dict[str, object]], random) -> None:
    messages = pd.DataFrame(rows)
    of_cores = Detours(
        np.array([random.randint(-1, 50) for _ in rows]), np.array([random.random() < 0.5 for _ in rows])
    )
    for found in (None, of_cores):
        parts = sections(messages, found)
        for i, row in enumerate(rows):
            mine = parts.row == i
            start, end = parts.start[mine].tolist(), parts.end[mine].tolist()
            edges = [row["first_ns"], *end]
            assert start == edges[:-1]
            assert edges[-1] == row["last_ns"]
