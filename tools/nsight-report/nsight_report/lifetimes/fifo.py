# SPDX-License-Identifier: GPL-2.0-only
"""Pairs queue entries with queue exits, first in, first out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
NONE = -1


def pair(queue: I64, is_out: Bool) -> tuple[I64, I64]:
    """Pair rows sorted by ``(queue, time)``: which row each out row takes, and the depth after each row.

    An out row that finds the queue empty takes nothing (its entry was not recorded), and the
    queue stays empty: this is how the count becomes right again after a loss. Rows that go in,
    and out rows that take nothing, get -1.

    >>> import numpy as np
    >>> taken, depth = pair(np.zeros(5, np.int64), np.array([True, False, False, True, True]))
    >>> taken.tolist(), depth.tolist()
    ([-1, -1, -1, 1, 2], [0, 1, 2, 1, 0])
    """
    n_rows = len(queue)
    taken = np.full(n_rows, NONE)
    if not n_rows:
        return taken, np.zeros(0, np.int64)
    first = np.ones(n_rows, dtype=bool)
    first[1:] = queue[1:] != queue[:-1]
    group = np.cumsum(first) - 1
    step = np.where(is_out, -1, 1)
    total = np.cumsum(step)
    start = np.flatnonzero(first)
    level = total - (total[start] - step[start])[group]
    # Lowest level so far, at most 0; a falling offset that no level reaches keeps groups apart.
    offset = group * (2 * n_rows + 1)
    floor = np.minimum.accumulate(np.minimum(level, 0) - offset) + offset
    before = np.concatenate(([0], floor[:-1]))
    before[first] = 0
    in_vain = is_out & (floor < before)
    takes = np.flatnonzero(is_out & ~in_vain)
    enters = np.flatnonzero(~is_out)
    n_entered = np.concatenate(([0], np.cumsum(~is_out)))[start]
    n_taken_before = np.concatenate(([0], np.cumsum(is_out & ~in_vain)))[start]
    nth = np.arange(len(takes)) - n_taken_before[group[takes]]
    taken[takes] = enters[n_entered[group[takes]] + nth]
    return taken, level - floor
