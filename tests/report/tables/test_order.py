# SPDX-License-Identifier: GPL-2.0-only
"""Sorting, and searching in sorted data, gives the same result whether the data were sorted before or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from machinery.made_up.tables import message, table
from nsight_report.errors import BadInput
from nsight_report.lifetimes.stage import _ahead
from nsight_report.tables.external_sort import Runs, columns_of, joined, rows_of
from nsight_report.tables.messages import Messages
from nsight_report.timeline.exposure import _among
from nsight_report.timeline.occupancy import Asked

ROW = np.dtype([("ts", np.int64), ("number", np.int64), ("place", np.int64)])


def rows(*of: tuple[int, int]) -> np.ndarray:
    return np.array([(ts, number, place) for place, (ts, number) in enumerate(of)], ROW)


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ([(1, 0), (2, 0), (9, 0)], [0, 1, 2]),
        ([(1, 5), (1, 6), (2, 0)], [0, 1, 2]),
        ([(1, 6), (1, 5), (2, 0)], [1, 0, 2]),  # in order by the first key only
        ([(1, 5), (2, 7), (2, 6), (1, 9)], [0, 3, 2, 1]),
        ([(1, 5), (1, 5), (1, 4)], [2, 0, 1]),  # equal ones keep their order
        ([(7, 7)], [0]),
        ([], []),
    ],
)
def test_runs_are_in_order_of_every_key(
    tmp_path: Path, given: list[tuple[int, int]], places: list[int]
) -> None:
    runs = Runs(tmp_path / "runs", ROW, ("ts", "number"))
    runs.add(rows(*given))
    found = np.concatenate([np.zeros(0, ROW), *runs.merged()])
    assert found["place"].tolist() == places


@pytest.mark.parametrize("n_rows", [0, 1, 2048, 5000])
def test_rows_and_columns_are_made_from_each_other(n_rows: int) -> None:
    columns = {"ts": np.arange(n_rows) * 3, "number": np.arange(n_rows)[::-1]}
    made = rows_of(ROW, {**columns, "place": -1})
    assert made.dtype == ROW
    found = columns_of(joined([made[:1], made[1:]]), ["place", "number", "ts"])
    assert list(found) == ["place", "number", "ts"]
    assert all(found[name].tolist() == of.tolist() for name, of in columns.items())
    assert found["place"].tolist() == [-1] * n_rows
    assert all(of.flags.c_contiguous for of in found.values())


@pytest.mark.parametrize("ids", [[3, 4, 7, 9], [9, 4, 3, 7]])
@pytest.mark.parametrize("wanted", [[], [4], [9, 3, 3], [0, 5, 8, 100], [7, -1, 4]])
def test_rows_of_messages_are_those_of_the_numbers_in_the_tables_order(
    ids: list[int], wanted: list[int]
) -> None:
    messages = Messages(table("messages", [message(n, n, n + 5, n + 10) for n in ids]))
    found = messages.rows(np.array(wanted, np.int64), ["message_id"])
    assert found["message_id"].tolist() == [n for n in ids if n in wanted]


def test_numbers_are_looked_for_among_many_ids() -> None:
    ids = np.array([2, 5, 8])
    assert _among(np.array([-1, 2, 3, 8, 9, 1]), ids).tolist() == [False, True, False, True, False, False]
    assert _among(np.array([-1, 2]), np.zeros(0, np.int64)).tolist() == [False, False]


def test_what_is_read_ahead_is_all_of_it_and_its_error() -> None:
    def broken() -> Iterator[int]:
        yield from (1, 2)
        raise BadInput("i.csv:3: not a number", "see the manual")

    assert list(_ahead(iter([5, 6, 7]))) == [5, 6, 7]  # type: ignore[list-item, comparison-overlap]
    assert list(_ahead(iter([]))) == []
    found = []
    with pytest.raises(BadInput, match=r"i\.csv:3"):
        for item in _ahead(broken()):  # type: ignore[arg-type]
            found.append(item)
    assert found == [1, 2]


@pytest.mark.parametrize("starts", [[0, 4, 5, 9, 20, 29, 30, 31], [31, 0, 5, 4, 30, 29, 9, 20], [7], []])
def test_what_overlaps_requested_times_is_found_in_any_order(starts: list[int]) -> None:
    """By its definition: an interval [start, end) overlaps one of [5, 10), [20, 30) or [40, 41)."""
    asked = Asked(np.zeros(0, np.int64), np.array([5, 20, 40]), np.array([10, 30, 41]))
    start = np.array(starts, np.int64)
    for length in (0, 1, 3, 12):
        expected = [
            any(s < high and low < s + length and (s >= low or s + length > low) for low, high in zip(asked.low, asked.high, strict=True))
            for s in starts
        ]  # fmt: skip
        assert asked.about(start, start + length).tolist() == expected
