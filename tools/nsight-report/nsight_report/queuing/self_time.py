# SPDX-License-Identifier: GPL-2.0-only
"""What cores did in some intervals, function by function: which one was innermost, for how long, and who called it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ..anomalies.paths import find_paths
from ..attribution.symbols import is_kernel
from ..calls.call_tree import COLUMNS, MARKS, CallTree
from ..calls.innermost import innermost
from ..interval_joins import Int, overlaps
from ..names import ARROW
from ..tables.data_frames import to_pandas
from ..timeline.activity import Activity

#: Arguments of the lookup of a category: (kind, subject, object).
Asked = tuple[str, str, str]
_OF_THREAD = ("thread", "gap", "idle")
#: Functions through which every system call passes: they do not tell which one it is.
_EVERY_SYSCALL = frozenset(
    {
        "entry_SYSCALL_64",
        "entry_SYSCALL_64_after_hwframe",
        "entry_SYSCALL_64_safe_stack",
        "do_syscall_64",
        "x64_sys_call",
    }
)


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
        # A system call or an exception is called, too: only the thread itself begins a path.
        begins = near["kind"].isin(_OF_THREAD).to_numpy(bool)
        self._paths, self._path = find_paths(replace(tree, is_root=begins))
        self._caller = np.append(self._paths.up, -1)  # of no path: none
        self._tiles = innermost(rows, tree.cpu, tree.start, tree.end, tree.parent)
        self._code = code.astype(np.int64)

    def of(self, cpu: Int, start: Int, end: Int) -> tuple[Int, Int, Int, Int]:
        """The innermost calls in intervals that lie within those: (which interval, position in ``names``, number of its path, ns)."""
        tiles = self._tiles
        query, tile, low, high = overlaps(cpu, start, end, tiles.cpu, tiles.start, tiles.end)
        row = tiles.row[tile]
        return query, self._code[row], self._path[row], high - low

    def callers(self, path: int) -> str:
        """The callers of the last function of a path, outermost first, up to the entry into the kernel: of a system call its
        own function, as ``do_syscall_64`` calls it. "" if none of them is known."""
        paths, names = self._paths, list[str]()
        path = int(self._caller[path])
        while path >= 0:
            symbol = str(paths.symbol[path])
            if symbol not in _EVERY_SYSCALL:
                names = [symbol] if is_kernel(str(paths.dso[path])) else [*names, symbol]
            path = int(paths.up[path])
        return ARROW.join(reversed(names))


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
