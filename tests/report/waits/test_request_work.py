# SPDX-License-Identifier: GPL-2.0-only
"""Which thread had a request in hand, for a few hand-made requests and waits: thread 10 reads, 20 and 30 work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machinery.made_up.tables import table
from nsight_report.waits import Activity
from nsight_report.waits.hands import COLUMNS, work
from waits_by_hand import activity, chains, intervals, ran, told, waited

STATES = [ran(tid, 0, 10_000, tid) for tid in (10, 20, 30)]


def requests(*rows: tuple[int, int, int, int, int]) -> pd.DataFrame:
    """(request_id, reader, replier, read, last send)."""
    return pd.DataFrame(rows, columns=list(COLUMNS))


def worked(rows: pd.DataFrame, waits: list[dict[str, Any]], *wanted: int) -> list[tuple[Any, ...]]:
    """(thread, begin, end, how, sure) of the requests in ``wanted``, or of all."""
    ids = np.array(wanted) if wanted else rows["request_id"].to_numpy()
    found = work(rows, ids, activity(STATES, [], waits)).to_pylist()
    return [tuple(row[name] for name in ("tid", "start_ns", "end_ns", "how", "sure")) for row in found]


def test_who_reads_and_replies_has_it_all_the_time() -> None:
    waits = [waited(10, 150, 300, "futex", by=20)]  # a wait in between is not a hand-over
    assert worked(requests((1, 10, 10, 100, 500)), waits) == [(10, 100, 500, "read", "measured")]


def test_the_wake_up_by_the_reader_hands_it_over() -> None:
    waits = [waited(20, 0, 180, "futex", by=10), waited(20, 250, 400, "fdatasync", by=10, state="blocked")]
    assert worked(requests((1, 10, 20, 100, 500)), waits) == [
        (10, 100, 180, "read", "measured"),
        (20, 180, 500, "lock", "measured"),
    ]


def test_a_wake_up_by_another_one_before_is_none_of_it_if_the_reader_wakes_it_too() -> None:
    waits = [waited(20, 0, 120, "futex", by=30), waited(20, 130, 180, "read", by=10)]
    assert worked(requests((1, 10, 20, 100, 500)), waits) == [
        (10, 100, 180, "read", "measured"),
        (20, 180, 500, "hand-over", "measured"),
    ]


def test_who_is_woken_by_somebody_else_did_not_get_it_from_the_reader() -> None:
    """Thread 30 had nothing from the reader; it releases a lock."""
    waits = [waited(20, 0, 180, "futex", by=30), waited(10, 150, 900, "epoll_wait")]
    assert worked(requests((1, 10, 20, 100, 500)), waits) == [
        (10, 100, 150, "read", "inferred"),
        (20, 150, 500, "memory", "inferred"),
    ]


def test_it_may_pass_through_several_threads() -> None:
    waits = [waited(20, 0, 150, "epoll_wait", by=10), waited(30, 0, 300, "futex", by=20)]
    assert worked(requests((1, 10, 30, 100, 500)), waits) == [
        (10, 100, 150, "read", "measured"),
        (20, 150, 300, "hand-over", "measured"),
        (30, 300, 500, "lock", "measured"),
    ]


@pytest.mark.parametrize(
    ("pids", "how"), [((1, 1), ("hand-over", "inferred")), ((1, 2), ("lock", "measured"))]
)
def test_a_parked_thread_is_woken_from_no_lock_by_a_thread_of_its_process_that_comes_from_epoll(
    pids: tuple[int, int], how: tuple[str, str]
) -> None:
    """Thread 20 is parked from 0 to 180; 10 waited in epoll until 90, and reads the request at 100. In wait chains that is no lock either."""
    of = activity(STATES, [], [waited(10, 20, 90, "epoll_pwait"), waited(20, 0, 180, "futex", by=10)])
    states = [
        {**row, "pid": {10: pids[0], 20: pids[1]}.get(row["tid"], 3)} for row in of.thread_states.to_pylist()
    ]
    of = Activity(table("thread_states", states), of.contexts, of.waits)
    found = work(requests((1, 10, 20, 100, 500)), np.array([1]), of).to_pylist()
    assert [(row["tid"], row["how"], row["sure"]) for row in found] == [(10, "read", "measured"), (20, *how)]
    assert (0, 20, 0, 180, how[0], "futex") in told(chains(intervals((20, 0, 180)), of)[0])


def test_a_worker_that_did_not_sleep_took_it_from_memory_after_its_reply_before() -> None:
    """Request 2 is read at 120 and the reader sleeps from 140 on; the worker has request 1 until 300 and is not woken again."""
    rows = requests((1, 10, 20, 100, 300), (2, 10, 20, 120, 500))
    waits = [waited(20, 0, 110, "futex", by=10), waited(10, 140, 900, "epoll_wait")]
    assert worked(rows, waits, 1) == [(10, 100, 110, "read", "measured"), (20, 110, 300, "lock", "measured")]
    assert worked(rows, waits, 2) == [
        (10, 120, 140, "read", "inferred"),
        (20, 140, 300, "queued", "inferred"),
        (20, 300, 500, "memory", "inferred"),
    ]


@pytest.mark.parametrize(("place", "handed"), [("clock_nanosleep", False), ("futex", True)])
def test_a_worker_that_slept_on_purpose_had_it_before(place: str, handed: bool) -> None:
    """Thread 20 sleeps until 150, on purpose or because it has no work; later the reader wakes it for some reason."""
    idle = waited(20, 0, 150, place, context="hardirq", symbol="local_timer")
    found = worked(requests((1, 10, 20, 100, 500)), [idle, waited(20, 160, 180, "futex", by=10)])
    assert (found[-1] == (20, 180, 500, "lock", "measured")) is handed
    assert handed or found == [(20, 100, 500, "memory", "inferred")]


def test_the_reader_has_it_until_it_reads_the_next_one() -> None:
    rows = requests((1, 10, 20, 50, 300), (2, 10, 20, 120, 500), (3, 10, 10, 130, 135))
    assert worked(rows, [], 2)[0] == (10, 120, 130, "read", "inferred")


def test_what_a_thread_has_beside_another_request_is_shared() -> None:
    """An event loop reads request 2 at 200 while it has request 1 until 300."""
    rows = requests((1, 10, 10, 100, 300), (2, 10, 10, 200, 400))
    assert worked(rows, []) == [
        (10, 100, 200, "read", "measured"), (10, 200, 300, "read", "shared"),
        (10, 200, 300, "read", "shared"), (10, 300, 400, "read", "measured"),
    ]  # fmt: skip
    assert worked(rows, [], 2) == [(10, 200, 300, "read", "shared"), (10, 300, 400, "read", "measured")]


def test_without_the_scheduler_nothing_tells_how_it_came_to_the_worker() -> None:
    found = work(requests((1, 10, 20, 100, 500)), np.array([1]), activity([], [], [])).to_pylist()
    assert [(row["tid"], row["how"], row["sure"]) for row in found] == [(20, "memory", "missing")]


def test_a_wake_up_by_an_interrupt_is_no_hand_over() -> None:
    waits = [waited(20, 0, 180, "futex", context="softirq", symbol="TIMER")]
    assert worked(requests((1, 10, 20, 100, 500)), waits) == [(20, 100, 500, "memory", "inferred")]


@pytest.mark.parametrize("empty", [(1, 10, 20, 100, 100), (1, 10, 20, 100, 90)])
def test_a_service_of_no_length_has_no_part(empty: tuple[int, int, int, int, int]) -> None:
    assert worked(requests(empty), []) == []


_TID = st.sampled_from([10, 20, 30])
_TIME = st.integers(0, 60)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(_TID, _TID, _TIME, st.integers(1, 30)), min_size=1, max_size=6),
    st.lists(st.tuples(_TID, _TIME, st.integers(1, 9), _TID), max_size=12),
)
def test_parts_tile_every_service(
    exchanges: list[tuple[int, int, int, int]], slept: list[tuple[int, int, int, int]]
) -> None:
    rows = requests(*((n, a, b, read, read + ns) for n, (a, b, read, ns) in enumerate(exchanges)))
    end, waits = {10: 0, 20: 0, 30: 0}, []
    for tid, start, ns, by in slept:  # waits of one thread do not overlap; another thread ends them
        start = max(start, end[tid])
        end[tid] = start + ns
        waits.append(waited(tid, start, start + ns, "futex", by=by if by != tid else -1))
    found = work(rows, rows["request_id"].to_numpy(), activity(STATES, [], waits)).to_pandas()
    for row in rows.itertuples():
        own = found[found["request_id"] == row.request_id]
        assert own["start_ns"].iloc[0] == row.read_ns and own["end_ns"].iloc[-1] == row.last_send_ns
        assert (own["start_ns"].to_numpy()[1:] == own["end_ns"].to_numpy()[:-1]).all()
