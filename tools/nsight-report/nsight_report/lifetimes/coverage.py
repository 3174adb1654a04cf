# SPDX-License-Identifier: GPL-2.0-only
"""Which of many byte ranges covered a byte first, and which bytes were covered more than once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..interval_joins import distinct

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Coverage:
    """Ranges ``[start, end)`` in order of time; ranges of several streams may share one key space.

    The cost is n log n regardless of overlap: no range is ever cut into pieces.

    >>> import numpy as np
    >>> c = Coverage(np.array([0, 10, 5]), np.array([10, 20, 15]))
    >>> c.first(np.array([9, 12, 25])).tolist()  # 12 was covered by range 1 before range 2
    [0, 1, -1]
    >>> c.repeated(np.array([0, 0]), np.array([5, 6])).tolist()
    [False, True]
    """

    def __init__(self, start: I64, end: I64) -> None:
        self._bounds = distinct(np.concatenate((start, end)))
        self._starts = np.sort(start)
        self._ends = np.sort(end)
        low = np.searchsorted(self._bounds, start)
        high = np.searchsorted(self._bounds, end)
        n_pieces = len(self._bounds)
        steps = np.bincount(low, minlength=n_pieces) - np.bincount(high, minlength=n_pieces)
        self._first = _earliest(low, high, n_pieces)
        more = np.cumsum(steps) > 1
        self._n_repeated = np.concatenate(([0], np.cumsum(more)))

    def first(self, key: I64) -> I64:
        """Index of the first range that covers each byte, -1 where none does."""
        if not len(self._bounds):
            return np.full(len(key), -1, np.int64)
        piece = np.searchsorted(self._bounds, key, side="right") - 1
        return np.where(piece >= 0, self._first[np.maximum(piece, 0)], -1)

    def repeated(self, start: I64, end: I64) -> Bool:
        """Whether some byte of each ``[start, end)`` was covered more than once."""
        if not len(self._bounds):
            return np.zeros(len(start), dtype=bool)
        low = np.maximum(np.searchsorted(self._bounds, start, side="right") - 1, 0)
        high = np.searchsorted(self._bounds, end, side="left")
        return np.asarray(self._n_repeated[np.maximum(high, low)] > self._n_repeated[low])

    def n_overlapping(self, start: I64, end: I64) -> I64:
        """How many ranges share a byte with each ``[start, end)``."""
        begun = np.searchsorted(self._starts, end, side="left")
        over = np.searchsorted(self._ends, start, side="right")
        return np.asarray(begun - over)


def _earliest(low: I64, high: I64, n_pieces: int) -> I64:
    """For each piece the smallest index i with ``low[i] <= piece < high[i]``, or -1.

    A range is the union of two overlapping blocks whose length is a power of two. The minimum is
    entered for those two blocks, then blocks hand their minimum down to their halves.
    """
    nothing = len(low)
    length = high - low
    level = np.zeros(len(low), np.int64)
    if len(low):
        level = np.frexp(length.astype(np.float64))[1].astype(np.int64) - 1
    best = np.full(n_pieces, nothing, np.int64)
    for k in range(int(level.max(initial=0)), -1, -1):
        rows = np.flatnonzero((level == k) & (length > 0))
        np.minimum.at(best, low[rows], rows)
        np.minimum.at(best, high[rows] - (1 << k), rows)
        if k:
            half = 1 << (k - 1)
            lower = best.copy()
            np.minimum(lower[half:], best[:-half], out=lower[half:])
            best = lower
    return np.where(best == nothing, -1, best)
