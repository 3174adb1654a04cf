# SPDX-License-Identifier: GPL-2.0-only
"""Joins of half-open time intervals, vectorised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


def overlaps(
    query_group: Int, query_start: Int, query_end: Int, group: Int, start: Int, end: Int
) -> tuple[Int, Int, Int, Int]:
    """Every pair of a query interval and an interval of the same group that overlap.

    The intervals (``group``, ``start``, ``end``) must not overlap within a group; queries may.
    Returns ``(query index, interval index, overlap start, overlap end)``, ordered by query,
    then time. Empty overlaps are left out.

    >>> import numpy as np
    >>> a = np.array
    >>> [x.tolist() for x in overlaps(a([1]), a([5]), a([25]), a([1, 1, 2]), a([0, 10, 0]), a([10, 30, 9]))]
    [[0, 0], [0, 1], [5, 10], [10, 25]]
    """
    order = in_order(group, start)
    if order is not None:
        group, start, end = group[order], start[order], end[order]
    first = np.zeros(len(query_group), np.int64)
    last = np.zeros(len(query_group), np.int64)
    for value, rows in members(query_group):
        low, high = np.searchsorted(group, [value, value + 1])
        first[rows] = low + np.searchsorted(end[low:high], query_start[rows], "right")
        last[rows] = low + np.searchsorted(start[low:high], query_end[rows], "left")
    counts = np.maximum(last - first, 0)
    query = np.repeat(np.arange(len(query_group)), counts)
    item = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    low_ns = np.maximum(query_start[query], start[item])
    high_ns = np.minimum(query_end[query], end[item])
    keep = high_ns > low_ns
    item = item[keep]
    return query[keep], item if order is None else order[item], low_ns[keep], high_ns[keep]


def members(group: Int) -> Iterator[tuple[int, Int]]:
    """Each group and its rows, both ascending; sorts once for any number of groups.

    >>> [(value, rows.tolist()) for value, rows in members(np.array([7, -1, 7]))]
    [(-1, [1]), (7, [0, 2])]
    """
    order = np.argsort(group, kind="stable")
    values, at = np.unique(group[order], return_index=True)
    return zip(values.tolist(), np.split(order, at[1:]), strict=False)  # no group: one part without rows


def distinct(values: Int) -> Int:
    """The different values, ascending. For many values that are nearly in order, np.unique can take a hundred times as long: it hashes them.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    values = np.sort(values, kind="stable")
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]]


def meets(start: Int, end: Int, of_start: Int, of_end: Int) -> npt.NDArray[np.bool_]:
    """Which intervals overlap at least one of the other intervals; those may overlap each other and be in any order.

    >>> meets(np.array([0, 5, 9]), np.array([5, 9, 12]), np.array([8, 1, 3]), np.array([9, 2, 5])).tolist()
    [True, True, False]
    """
    order = np.argsort(of_start)
    until = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(of_end[order]))
    return until[np.searchsorted(of_start[order], end)] > start


def latest(group: Int, time: Int, of: Int, at: Int) -> Int:
    """The last row of group ``of`` at or before each time ``at``; rows are in order of group and time; -1: none.

    >>> latest(np.array([1, 1, 2]), np.array([5, 9, 0]), np.array([1, 1, 1, 2, 3]), np.array([4, 5, 99, 7, 7])).tolist()
    [-1, 0, 1, 2, -1]
    """
    found = np.full(len(of), -1)
    for value, rows in members(of):
        low, high = np.searchsorted(group, [value, value + 1])
        place = low + np.searchsorted(time[low:high], at[rows], "right") - 1
        found[rows] = np.where(place >= low, place, -1)
    return found


def keys(*pairs: tuple[Int, Int]) -> list[Int]:
    """One number for each pair of group and time in the given lists; the numbers sort like (group, time).

    >>> [of.tolist() for of in keys((np.array([7, 7, 9]), np.array([1, 5, 1])), (np.array([7]), np.array([3])))]
    [[0, 4, 10], [2]]
    """
    (low, high), (first, last) = (_range(of) for of in zip(*pairs, strict=True))
    span = last - first + 1
    if (high - low + 1) * span <= np.iinfo(np.int64).max:
        return [(group.astype(np.int64) - low) * span + (time - first) for group, time in pairs]
    # Groups or times that are too far apart are numbered first, which sorts all of them.
    groups, times = (distinct(np.concatenate(of)) for of in zip(*pairs, strict=True))
    return [
        np.searchsorted(groups, group) * len(times) + np.searchsorted(times, time) for group, time in pairs
    ]


def _range(parts: tuple[Int, ...]) -> tuple[int, int]:
    """Least and largest of all values; 0 without any."""
    some = [part for part in parts if len(part)]
    return min((int(of.min()) for of in some), default=0), max((int(of.max()) for of in some), default=0)


def in_order(group: Int, start: Int) -> Int | None:
    """The permutation that sorts rows by group and start; None if they are sorted already, as rows of stored tables are.

    >>> in_order(np.array([1, 1, 2]), np.array([5, 5, 0])) is None
    True
    >>> in_order(np.array([1, 1, 2]), np.array([5, 4, 0])).tolist()
    [1, 0, 2]
    """
    later, same = group[1:] > group[:-1], group[1:] == group[:-1]
    if (later | (same & (start[1:] >= start[:-1]))).all():
        return None
    return np.lexsort((start, group))


def tile(group: Int, start: Int, end: Int) -> tuple[Int, Int, Int, Int]:
    """Make possibly overlapping intervals tile their groups' time: a later start ends an earlier interval.

    Returns ``(group, start, end, index)`` of non-overlapping pieces; ``index`` is the row that
    owns the piece, -1 for the time between, before and after (within the int64 range).
    """
    order = np.lexsort((start, group))
    g, s, e = group[order], start[order], end[order]
    if not len(g):
        return g, s, e, order
    last = np.append(g[1:] != g[:-1], True)
    first = np.append(True, g[1:] != g[:-1])
    horizon = np.iinfo(np.int64).max
    following = np.where(last, horizon, np.append(s[1:], horizon))
    stop = np.clip(e, s, following)
    owned = (g, s, stop, order)
    between = (g, stop, following, np.full(len(g), -1))
    before = (g[first], np.full(first.sum(), np.iinfo(np.int64).min), s[first], np.full(first.sum(), -1))
    parts = [np.concatenate(columns) for columns in zip(owned, between, before)]
    keep = parts[2] > parts[1]
    return parts[0][keep], parts[1][keep], parts[2][keep], parts[3][keep]


def as_of(group: Int, time: Int, of: Int, at: Int) -> Int:
    """Like ``latest``, for any number of groups; of rows with equal times, the last one. Groups may be in any order.

    >>> as_of(np.array([1, 2, 1]), np.array([5, 0, 9]), np.array([1, 1, 1, 2, 3]), np.array([4, 5, 99, 7, 7])).tolist()
    [-1, 0, 2, 1, -1]
    """
    n = len(group)
    groups, times = np.concatenate([group, of]), np.concatenate([time, at])
    order = np.lexsort((np.arange(len(groups)), times, groups))
    place = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), -1))
    row = np.where(place >= 0, order[place], -1)
    found = np.empty(len(groups), np.int64)
    found[order] = np.where((row >= 0) & (groups[row] == groups[order]), row, -1)
    return found[n:]
