# SPDX-License-Identifier: GPL-2.0-only
"""Which messages an injection delayed, by the client's log."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from nsight_demo.logs import overlap_ns

from evaluation.truth.as_read import cost_ns
from evaluation.truth.score import bursts

#: Three bursts of two requests: intended, sent, answered. The second one takes five times as long as the others.
LOAD = pd.DataFrame(
    [
        ("burst", 100, 100, 150), ("burst", 100, 102, 160),
        ("burst", 500, 500, 700), ("burst", 500, 502, 800),
        ("get", 810, 810, 820),
        ("burst", 900, 900, 940), ("burst", 900, 901, 960),
    ],
    columns=["kind", "intended_ns", "send_ns", "recv_ns"],
)  # fmt: skip


def test_a_long_burst_counts_like_the_others() -> None:
    assert bursts(LOAD).tolist() == [[100, 160], [500, 800], [900, 960]]


def test_what_waits_in_any_burst_has_its_cost() -> None:
    """The first message is usual (5); the others wait in one burst each, and may take 5."""
    messages = pd.DataFrame({"first_ns": [200, 110, 510, 910], "last_ns": [205, 150, 790, 950]})
    assert cost_ns(messages, bursts(LOAD)).tolist() == [0, 35, 275, 35]


def test_bursts_that_overlap_are_one() -> None:
    late = LOAD.assign(recv_ns=LOAD["recv_ns"].replace(800, 930))
    assert bursts(late).tolist() == [[100, 160], [500, 960]]


def test_intervals_in_another_order_are_refused() -> None:
    one = np.array([110]), np.array([150])
    assert overlap_ns(*one, np.array([[100, 160], [500, 800]])).tolist() == [40]
    with pytest.raises(ValueError, match="order of time"):
        overlap_ns(*one, np.array([[500, 800], [100, 160]]))
