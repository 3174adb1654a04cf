# SPDX-License-Identifier: GPL-2.0-only
"""What is decoded for a message: the cores that its diagnosis looks at, and no others."""

from __future__ import annotations

import pandas as pd
from nsight_report.anomalies.windows import MARGIN_NS, to_decode


def test_the_receive_core_and_every_core_of_the_reading_thread_meanwhile() -> None:
    messages = pd.DataFrame(
        {"first_ns": [100_000], "last_ns": [200_000], "tid": [7], "recv_cpu": [0], "app_cpu": [3]}
    )
    thread_states = pd.DataFrame(
        {
            "tid": [7, 7, 7, 8],
            "start_ns": [50_000, 100_000, 150_000, 100_000],
            "end_ns": [100_000, 150_000, 200_000, 200_000],
            "cpu": [5, 2, 3, 9],  # core 5 was left before, on 9 there is another thread
        }
    )
    begin, end = 100_000 - MARGIN_NS, 200_000 + MARGIN_NS
    assert to_decode(messages, thread_states).tolist() == [[begin, end, cpu] for cpu in (0, 2, 3)]


def test_cores_that_are_not_known_are_left_out() -> None:
    messages = pd.DataFrame(
        {"first_ns": [100_000], "last_ns": [200_000], "tid": [None], "recv_cpu": [1], "app_cpu": [None]}
    )
    states = pd.DataFrame({"tid": [7], "start_ns": [0], "end_ns": [300_000], "cpu": [2]})
    assert to_decode(messages, states)[:, 2].tolist() == [1]
