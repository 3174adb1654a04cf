# SPDX-License-Identifier: GPL-2.0-only
"""A message's lifetime consists of calls of two cores, cut where its intervals begin and end."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from nsight_report.timeline import calls_of_message as of_message
from nsight_report.timeline.calls_of_message import Interval, calls_of, calls_of_each, intervals_of

#: (call_id, parent_id, cpu, symbol, start, end)
CALLS = [
    (0, -1, 0, "swapper", 0, 100),
    (1, 0, 0, "net_rx_action", 20, 60),
    (2, 1, 0, "tcp_v4_rcv", 30, 50),
    (3, -1, 1, "server", 0, 200),
    (4, 3, 1, "recv", 70, 150),
    (5, 4, 1, "tcp_recvmsg", 90, 140),
]


def calls() -> pd.DataFrame:
    frame = pd.DataFrame(CALLS, columns=["call_id", "parent_id", "cpu", "symbol", "start_ns", "end"])
    return frame.assign(dur_ns=frame["end"] - frame["start_ns"])


def message(**values: Any) -> list[Interval]:
    row = {"direction": "rx", "first_ns": 25, "arrival_ns": 30, "arrival_last_ns": 30, "handoff_ns": 40, "handoff_cpu": 0,
           "app_ns": 120, "last_ns": 120, "recv_cpu": 0, "app_cpu": 1, "driver_ns": pd.NA,
           "qdisc_dur_ns": pd.NA}  # fmt: skip
    return intervals_of(pd.DataFrame([{**row, **values}]))[0]


def told(parts: list[Interval]) -> list[tuple[str, str, int, int, int]]:
    columns = ["side", "symbol", "within_start_ns", "within_dur_ns", "within_self_ns"]
    return list(calls_of(parts, calls())[columns].itertuples(index=False, name=None))


def test_receive_core_to_the_hand_off_then_application_core_to_the_read() -> None:
    assert told(message()) == [
        # 25 to 40 on core 0
        ("R", "swapper", 25, 15, 0),
        ("R", "net_rx_action", 25, 15, 5),
        ("R", "tcp_v4_rcv", 30, 10, 10),
        # 40 to 120 on core 1
        ("A", "server", 40, 80, 30),
        ("A", "recv", 70, 50, 20),
        ("A", "tcp_recvmsg", 90, 30, 30),
    ]


@pytest.mark.parametrize("together", [0, 200_000])  # returned one by one, or all at the end
def test_several_messages_read_together_are_each_as_if_alone(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_message, "_TOGETHER", together)
    rows = [message(), message(handoff_ns=pd.NA), message(first_ns=32, app_ns=95), message(recv_cpu=pd.NA)]
    found = list(calls_of_each(rows, calls()))
    assert len(found) == len(rows)
    for row, of in zip(rows, found, strict=True):
        pd.testing.assert_frame_equal(of, calls_of(row, calls()))
    assert [len(of) for of in found] == [6, 5, 6, 3]


def test_own_times_add_up_to_the_lifetime() -> None:
    assert sum(r[4] for r in told(message())) == 120 - 25


def test_without_a_hand_off_the_receive_core_counts_up_to_the_arrival() -> None:
    parts = message(handoff_ns=pd.NA, handoff_cpu=pd.NA)
    assert parts == [Interval("R", 0, 25, 30), Interval("A", 1, 30, 120)]


def test_a_core_that_is_not_known_leaves_out_its_side() -> None:
    assert [s.side for s in message(recv_cpu=pd.NA)] == ["A"]


def test_sent_from_the_call_to_the_driver() -> None:
    parts = message(direction="tx", first_ns=70, app_ns=95, last_ns=130, driver_ns=130, handoff_ns=pd.NA)
    assert parts == [Interval("A", 1, 70, 95), Interval("R", 0, 95, 130)]
