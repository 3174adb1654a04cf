# SPDX-License-Identifier: GPL-2.0-only
"""Which context was innermost at what time: nested rows of a core become intervals that tile it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Innermost:
    """``row``: the row that was innermost on ``cpu`` from ``start`` to ``end``. Ordered by cpu, start."""

    row: I64
    cpu: I64
    start: I64
    end: I64


def nearest(chosen: npt.NDArray[np.bool_], parent: I64) -> I64:
    """For each row, the innermost chosen row that it is or that contains it; -1: none.

    A parent comes before its children.

    >>> nearest(np.array([True, False, False, True]), np.array([-1, 0, 1, 2])).tolist()
    [0, 0, 0, 3]
    """
    none = len(parent)
    up = np.append(np.where(chosen, np.arange(none), np.where(parent < 0, none, parent)), none)
    while True:
        further = up[up]
        if (further == up).all():
            return np.where(up[:-1] == none, -1, up[:-1])
        up = further


def innermost(rows: I64, cpu: I64, start: I64, end: I64, parent: I64) -> Innermost:
    """Innermost of ``rows`` (indices, in table order), which nest.

    ``cpu``, ``start``, ``end`` are those of ``rows``; ``parent`` is the index of the enclosing one
    among ``rows``, or -1. Rows without length are never innermost.

    >>> s = innermost(np.array([5, 9]), np.array([0, 0]), np.array([0, 10]), np.array([50, 20]), np.array([-1, 5]))
    >>> list(zip(s.row.tolist(), s.start.tolist(), s.end.tolist()))
    [(5, 0, 10), (9, 10, 20), (5, 20, 50)]
    """
    long = end > start
    rows, cpu, start, end, parent = (a[long] for a in (rows, cpu, start, end, parent))
    n = len(rows)
    # At equal times: ends before begins, the inner end and the outer begin first. Sorting keeps that order.
    when, where, inside = (
        np.concatenate([ends[::-1], begins]) for ends, begins in ((end, start), (cpu, cpu), (parent, rows))
    )
    order = np.lexsort((when, where))
    when, where, inside = when[order], where[order], inside[order]
    if not n:
        return Innermost(rows, cpu, start, end)
    keep = (inside[:-1] >= 0) & (where[1:] == where[:-1]) & (when[1:] > when[:-1])
    return Innermost(inside[:-1][keep], where[:-1][keep], when[:-1][keep], when[1:][keep])
