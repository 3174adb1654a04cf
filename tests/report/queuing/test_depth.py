# SPDX-License-Identifier: GPL-2.0-only
"""How many intervals of a group begin or end up to a time: compared with the plain loop, and without more work for more groups."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nsight_report.queuing.depth import Served, overtaken

GAPS = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=30)
ASKED = st.lists(st.tuples(st.integers(-2, 6), st.integers(0, 90)), max_size=15)
STAYS = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(-1, 20), st.integers(-1, 20), st.booleans()), max_size=30
)


def served(gaps: list[tuple[int, int, int]]) -> Served:
    """Consecutive intervals of each group."""
    at: dict[int, int] = {}
    rows = []
    for group, gap, length in gaps:
        start = at.get(group, 0) + gap
        rows.append((group, start, start + length))
        at[group] = start + length
    return Served.build(*(np.array([row[i] for row in rows], np.int64) for i in range(3)))


@given(GAPS, ASKED, st.booleans(), st.sampled_from(["left", "right"]))
def test_places_are_those_of_all_groups_before_and_of_the_own_up_to_the_time(
    gaps: list[tuple[int, int, int]], asked: list[tuple[int, int]], begins: bool, side: Any
) -> None:
    of = served(gaps)
    ends = (of.start if begins else of.end).tolist()
    expected = [
        sum(
            g < group or (g == group and (end < time or (end == time and side == "right")))
            for g, end in zip(of.group.tolist(), ends, strict=True)
        )
        for group, time in asked
    ]
    found = of.places(*(np.array([row[i] for row in asked], np.int64) for i in range(2)), begins, side)
    assert found.tolist() == expected


@given(STAYS)
def test_overtaken_equals_the_double_loop(stays: list[tuple[int, int, int, bool]]) -> None:
    known = [g >= 0 and enter >= 0 and leave >= 0 and of for g, enter, leave, of in stays]
    expected = [
        sum(n and g == group and enter < other < leave for (g, _, other, _), n in zip(stays, known)) if good else 0
        for (group, enter, leave, _), good in zip(stays, known, strict=True)
    ]  # fmt: skip
    group, enter, leave = (np.array([row[i] for row in stays], np.int64) for i in range(3))
    found = overtaken(group, enter, leave, np.array([row[3] for row in stays], bool))
    assert found.tolist() == expected


def calls(work: Callable[[], object]) -> int:
    """The number of functions that it calls."""
    n = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n


def test_each_connection_of_many_costs_no_further_pass() -> None:
    """A server of short connections has one group for each message."""

    def work(n: int) -> int:
        at = np.arange(n)
        return calls(lambda: overtaken(at, at, at + 5, np.ones(n, bool)))

    assert work(2000) == work(20)
