# SPDX-License-Identifier: GPL-2.0-only
"""Finds the last record about something before a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

I64 = npt.NDArray[np.int64]


def latest(keys: I64, times: I64, wanted: I64, at: I64) -> I64:
    """For each of ``wanted``, the last row with that key at or before its time; -1: none.

    >>> latest(np.array([7, 8, 7]), np.array([10, 11, 20]), np.array([7, 7, 9]), np.array([15, 20, 30])).tolist()
    [0, 2, -1]
    """
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    code, _ = pd.factorize(np.concatenate((keys, wanted)))
    asks = np.repeat([False, True], [len(keys), len(wanted)])
    order = np.lexsort((asks, np.concatenate((times, at)), code))
    place = np.where(asks[order], -1, np.arange(len(order)))
    before = order[np.maximum(np.maximum.accumulate(place), 0)]
    same = (code[before] == code[order]) & (np.maximum.accumulate(place) >= 0)
    found = np.full(len(order), -1, np.int64)
    found[order] = np.where(same, before, -1)
    return found[len(keys) :]
