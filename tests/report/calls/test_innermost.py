# SPDX-License-Identifier: GPL-2.0-only
"""Intervals tile a core; a nested row shows where it is innermost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nsight_report.calls.innermost import innermost, nearest


def told(rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Intervals (row, cpu, start, end) made from rows (cpu, start, end, parent)."""
    columns = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    cpu, start, end, parent = columns
    s = innermost(np.arange(len(rows)), cpu, start, end, parent)
    return list(zip(s.row.tolist(), s.cpu.tolist(), s.start.tolist(), s.end.tolist(), strict=True))


def test_a_child_cuts_its_parent_in_two() -> None:
    rows = [(0, 0, 100, -1), (0, 10, 30, 0), (0, 20, 30, 1)]
    # 0-10 row 0, 10-20 row 1, 20-30 row 2 (both end at 30), 30-100 row 0
    assert told(rows) == [(0, 0, 0, 10), (1, 0, 10, 20), (2, 0, 20, 30), (0, 0, 30, 100)]


def test_neighbours_leave_nothing_between_them() -> None:
    rows = [(0, 0, 50, -1), (0, 0, 20, 0), (0, 20, 50, 0), (0, 50, 60, -1)]
    assert told(rows) == [(1, 0, 0, 20), (2, 0, 20, 50), (3, 0, 50, 60)]


def test_a_row_without_length_is_never_innermost() -> None:
    assert told([(0, 0, 50, -1), (0, 20, 20, 0)]) == [(0, 0, 0, 20 + 30)]


def test_cores_do_not_mix() -> None:
    assert told([(0, 0, 10, -1), (1, 5, 15, -1)]) == [(0, 0, 0, 10), (1, 1, 5, 15)]


def test_nothing_is_between_rows_of_the_top() -> None:
    assert told([(0, 0, 10, -1), (0, 20, 30, -1)]) == [(0, 0, 0, 10), (1, 0, 20, 30)]


def test_nearest_goes_up_over_many_levels() -> None:
    n = 1000
    chosen = np.zeros(n, bool)
    chosen[3] = True
    found = nearest(chosen, np.arange(n) - 1)  # each one is the child of the previous one
    assert found[:3].tolist() == [-1, -1, -1]
    assert set(found[3:].tolist()) == {3}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12))
def test_intervals_are_the_time_of_the_rows(spans: list[tuple[int, int]]) -> None:
    """Any nesting: at each time the innermost row is the last one that began and has not ended."""
    rows: list[tuple[int, int, int, int]] = []
    for low, high in sorted((min(s), max(s)) for s in spans):
        parents = [i for i, r in enumerate(rows) if r[1] <= low and high <= r[2] and r[2] > r[1]]
        crosses = any(r[1] < high and low < r[2] and not (r[1] <= low and high <= r[2]) for r in rows)
        if not crosses:
            rows.append((0, low, high, parents[-1] if parents else -1))
    for time in range(40):
        inside = [i for i, r in enumerate(rows) if r[1] <= time < r[2]]
        covering = [row for row, _, start, end in told(rows) if start <= time < end]
        assert covering == inside[-1:]
