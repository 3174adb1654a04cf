# SPDX-License-Identifier: GPL-2.0-only
"""What cores did in some intervals, function by function: which one was innermost, and for how long."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..calls.call_tree import COLUMNS, MARKS, CallTree
from ..calls.innermost import innermost
from ..interval_joins import Int, overlaps
from ..tables.data_frames import to_pandas
from ..timeline.activity import Activity

#: Arguments of the lookup of a category: (kind, subject, object).
Asked = tuple[str, str, str]
_OF_THREAD = ("thread", "gap", "idle")


class Inside:
    """The calls of a capture in some intervals of cores; ``names``: arguments of the lookup of a category."""

    def __init__(self, activity: Activity, cpu: Int, start: Int, end: Int) -> None:
        calls = activity.calls_while(cpu, start, end, COLUMNS)
        tree = CallTree.build(calls, np.zeros(0, np.int64))
        rows = np.arange(len(tree.cpu))
        near = to_pandas(calls)
        near = near[~near["kind"].isin(MARKS)]
        # Each distinct combination once.
        keys = near[["kind", "symbol", "dso", "before"]].astype(str)
        code, unique = pd.factorize(pd.MultiIndex.from_frame(keys))
        self.names: list[Asked] = [_asked(*key) for key in unique]
        self._tiles = innermost(rows, tree.cpu, tree.start, tree.end, tree.parent)
        self._code = code.astype(np.int64)

    def of(self, cpu: Int, start: Int, end: Int) -> tuple[Int, Int, Int]:
        """The innermost calls in intervals that lie within those: (which interval, position in ``names``, ns)."""
        tiles = self._tiles
        query, tile, low, high = overlaps(cpu, start, end, tiles.cpu, tiles.start, tiles.end)
        return query, self._code[tiles.row[tile]], high - low


def _asked(kind: str, symbol: str, dso: str, before: str) -> Asked:
    if kind == "function":
        return "function", symbol, dso
    if kind == "stall":
        return "stall", f"{before} ({symbol})", dso
    if kind == "syscall":
        return "function", f"__x64_sys_{symbol}", ""
    if kind in _OF_THREAD:
        return "own", "user code", ""
    return kind, symbol, ""
