# SPDX-License-Identifier: GPL-2.0-only
"""Which part of a recording is examined for a message: its cores, and no others."""

from __future__ import annotations

import pandas as pd
from nsight_report.selection.windows import MARGIN_NS, Window, around, on_cores


def message(**over: int) -> pd.DataFrame:
    row = dict.fromkeys(["tid", "recv_cpu", "handoff_cpu", "app_cpu"], pd.NA)
    return pd.DataFrame([{"first_ns": 100_000, "last_ns": 200_000, "app_ns": 200_000, **row, **over}])


def test_the_receive_core_and_every_core_of_the_reading_thread_meanwhile() -> None:
    messages = message(tid=7, recv_cpu=0, handoff_cpu=0, app_cpu=3)
    thread_states = pd.DataFrame(
        {
            "tid": [7, 7, 7, 8],
            "start_ns": [50_000, 100_000, 150_000, 100_000],
            "end_ns": [100_000, 150_000, 200_000, 200_000],
            "cpu": [5, 2, 3, 9],  # the thread left core 5 earlier; another thread is on 9
        }
    )
    begin, end = 100_000 - MARGIN_NS, 200_000 + MARGIN_NS
    assert on_cores(messages, thread_states).tolist() == [[begin, end, cpu] for cpu in (0, 2, 3)]


def test_cores_that_are_not_known_are_left_out() -> None:
    messages = message(recv_cpu=1)
    states = pd.DataFrame({"tid": [7], "start_ns": [0], "end_ns": [300_000], "cpu": [2]})
    assert on_cores(messages, states)[:, 2].tolist() == [1]


def test_the_core_of_the_hand_off_is_looked_at_even_if_it_is_neither_of_the_others() -> None:
    found = on_cores(message(recv_cpu=0, handoff_cpu=4, app_cpu=2))
    assert found[:, 2].tolist() == [0, 2, 4]


def test_windows_of_a_core_that_touch_are_one() -> None:
    near = pd.concat(
        [message(recv_cpu=1), message(recv_cpu=1).assign(first_ns=230_000, last_ns=240_000, app_ns=240_000)]
    )
    assert around(near) == [Window(1, 100_000 - MARGIN_NS, 240_000 + MARGIN_NS)]
    far = near.assign(first_ns=[100_000, 240_001], last_ns=[200_000, 250_000])
    assert len(around(far)) == 2
