# SPDX-License-Identifier: GPL-2.0-only
"""Where steal time without a place can lie, and which messages it can have delayed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from event_arrays import STRINGS, T0, Event, array, event, switch
from nsight_report.attribution.host_time import at_most
from nsight_report.calls import stolen
from nsight_report.capture.perf_data import Decoded
from nsight_report.losses import Ledger

TICK = stolen.TICK_NS


def steal(ts: int, ns: int, how: int, cpu: int = 0) -> Event:
    return event(ts, "steal", -1, cpu, a=ns, b=how)


def rows(*events: Event) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    """Rows of the table without T0, and the losses."""
    ledger = Ledger("calls")
    made = stolen.table(Decoded(array(*events), STRINGS, "monotonic", {}), ledger).to_pylist()
    lost = {row["key"]: row["count"] for row in ledger.table().to_pylist()}
    return [(r["cpu"], r["start_ns"] - T0, r["end_ns"] - T0, r["ns"]) for r in made], lost


def test_it_lies_after_the_previous_switch_or_reading_of_its_core() -> None:
    found, lost = rows(
        switch(0, 0, 10), steal(100, 30, stolen.UNKNOWN), switch(100, 10, 0), switch(130, 0, 12, cpu=1),
        switch(150, 0, 10), steal(180, 20, stolen.PLACED), steal(190, 5, stolen.UNKNOWN), switch(200, 10, 0),
        steal(240, 7, stolen.UNKNOWN, cpu=1),
    )  # fmt: skip
    assert found == [(0, 0, 100, 30), (0, 180, 190, 5), (1, 130, 240, 7)]
    # What the scheduler counted is a loss of its record files already.
    assert lost == {}


def test_before_the_first_event_of_a_core_it_is_as_long_as_it_took() -> None:
    assert rows(steal(100, 30, stolen.UNKNOWN))[0] == [(0, 70, 100, 30)]


def test_proc_stat_counts_only_for_cores_without_the_schedulers_count_and_a_tick_more() -> None:
    found, lost = rows(
        switch(0, 0, 10), steal(100, 30, stolen.UNKNOWN), steal(TICK, TICK, stolen.OF_STAT),
        steal(TICK, TICK, stolen.OF_STAT, cpu=1), steal(9 * TICK, 2 * TICK, stolen.OF_STAT, cpu=1),
    )  # fmt: skip
    assert found == [(0, 0, 100, 30), (1, 0, TICK, 2 * TICK), (1, TICK, 9 * TICK, 3 * TICK)]
    assert lost == {"records_steal_without_place": 3 * TICK}


def test_a_recording_without_steal_time_has_no_rows() -> None:
    assert rows(switch(0, 0, 10), switch(5, 10, 0)) == ([], {})


def test_impossible_times_do_not_overflow() -> None:
    """A hostile file: steal time of 2**48 ns, at the begin of all time, and more than there was time."""
    most = (1 << 48) - 1
    found, _ = rows(switch(0, 0, 10), *(steal(n, most, how) for n in range(1, 4) for how in (0, 2)))
    assert [row[3] for row in found] == [most] * 3
    messages = pd.DataFrame({"message_id": [1], "first_ns": [0], "last_ns": [1 << 62], "app_cpu": [0]})
    table = pd.DataFrame(found, columns=["cpu", "start_ns", "end_ns", "ns"])
    assert at_most(messages, table).tolist() == [3]  # no more than the times in which it can lie


def messages() -> pd.DataFrame:
    """Two messages on cores 0 and 1; the second one's receive core is unknown."""
    made = pd.DataFrame(
        {
            "message_id": [4, 9],
            "first_ns": [0, 100],
            "last_ns": [50, 200],
            "recv_cpu": pd.array([0, None], "Int32"),
            "handoff_cpu": pd.array([0, 1], "Int32"),
            "app_cpu": pd.array([1, 1], "Int32"),
        }
    )
    return made


def test_a_message_can_have_lost_no_more_than_was_taken_from_its_cores_in_its_lifetime() -> None:
    table = pd.DataFrame(
        [(0, 10, 30, 5), (0, 40, 90, 60), (1, 45, 120, 9), (1, 150, 400, 500), (2, 0, 900, 800)],
        columns=["cpu", "start_ns", "end_ns", "ns"],
    )
    # 4: 5 and 10 of core 0, 5 of core 1. 9: 9 and 50 of core 1, and nothing of core 0 or 2.
    assert at_most(messages(), table).to_dict() == {4: 20, 9: 59}


def test_without_messages_or_steal_time_it_is_nothing() -> None:
    nothing = pd.DataFrame({name: np.zeros(0, np.int64) for name in ("cpu", "start_ns", "end_ns", "ns")})
    assert at_most(messages(), nothing).tolist() == [0, 0]
    assert at_most(messages().head(0), nothing).tolist() == []
