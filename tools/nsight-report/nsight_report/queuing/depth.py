# SPDX-License-Identifier: GPL-2.0-only
"""How many messages were served ahead of each message, and how long that took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..interval_joins import Int, keys


@dataclass(frozen=True)
class Served:
    """When one function (or every message) was being served, by core or thread ``group``; intervals of a group do not overlap.

    Ordered by group, start.
    """

    group: Int
    start: Int
    end: Int

    @staticmethod
    def build(group: Int, start: Int, end: Int) -> Served:
        """A call inside another call of the same function is left out: it is part of it."""
        order = np.lexsort((-end, start, group))
        group, start, end = group[order], start[order], end[order]
        keep = np.ones(len(group), bool)
        for low, high in _runs(group):
            until = np.maximum.accumulate(end[low:high])
            keep[low + 1 : high] = start[low + 1 : high] >= until[:-1]
        return Served(group[keep], start[keep], end[keep])

    def places(self, group: Int, time: Int, begins: bool, side: Literal["left", "right"]) -> Int:
        """Number of intervals of all earlier groups, and of those of ``group`` that begin (or end) up to ``time``."""
        own, asked = keys((self.group, self.start if begins else self.end), (group, time))
        return np.searchsorted(own, asked, side)


def _runs(group: Int) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
    return list(zip(edges.tolist(), [*edges[1:].tolist(), len(group)], strict=True))


def ahead(served: Served, group: Int, enter: Int, leave: Int, in_service: bool) -> tuple[Int, Int]:
    """How many intervals the server ``group`` of each message served from ``enter`` to ``leave``, and for how long (ns).

    With ``in_service``, intervals count that end in that time, even if they began before it; otherwise those that begin in it.

    >>> import numpy as np
    >>> a = np.array
    >>> s = Served.build(a([1, 1, 1]), a([0, 10, 20]), a([8, 18, 28]))
    >>> [x.tolist() for x in ahead(s, a([1, 1]), a([5, 9]), a([20, 21]), True)]
    [[2, 1], [11, 8]]
    """
    if in_service:
        first = served.places(group, enter, False, "right")
        last = served.places(group, leave, False, "right")
    else:
        first = served.places(group, enter, True, "left")
        last = served.places(group, leave, True, "left")
    count = np.maximum(last - first, 0)
    total = np.append(0, np.cumsum(served.end - served.start))
    ns = np.where(count > 0, total[last] - total[first], 0)
    # Intervals that began earlier, or end later, count in part.
    some = count > 0
    ns[some] -= np.maximum(enter[some] - served.start[first[some]], 0)
    ns[some] -= np.maximum(served.end[last[some] - 1] - leave[some], 0)
    return count, ns


def once(served: Served, group: Int, low: Int, high: Int) -> float:
    """Share of the intervals [low, high] of ``group`` that meet exactly one of ``served``."""
    if not len(group):
        return 0.0
    first = served.places(group, low, False, "right")
    last = served.places(group, high, True, "right")
    return float((last - first == 1).mean())


def overtaken(group: Int, enter: Int, leave: Int, of: npt.NDArray[np.bool_]) -> Int:
    """For each message, how many of its ``group`` left between its ``enter`` and its ``leave``; 0 for messages outside ``of``.

    >>> overtaken(np.array([1, 1, 1]), np.array([0, 1, 2]), np.array([9, 12, 15]), np.ones(3, bool)).tolist()
    [0, 1, 2]
    """
    known = of & (enter >= 0) & (leave >= 0) & (group >= 0)
    out = np.zeros(len(group), np.int64)
    at = np.flatnonzero(known)
    order = np.lexsort((leave[at], group[at]))
    every = Served(group[at][order], leave[at][order], leave[at][order])
    low = every.places(group[at], enter[at], True, "right")
    high = every.places(group[at], leave[at], True, "left")
    out[at] = np.maximum(high - low, 0)
    return out
