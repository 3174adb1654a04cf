# SPDX-License-Identifier: GPL-2.0-only
"""Finds calls of a few functions in a large table, and reads no more of it than necessary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int

#: (kind, symbol, dso) of a function; the symbol of a function without a name contains its address.
Name = tuple[str, str, str]
_NAMED = ("kind", "symbol", "dso")
COLUMNS = (*_NAMED, "cpu", "tid", "start_ns", "dur_ns", "start_addr")
#: Name shared by functions of stripped programs: their addresses distinguish them.
UNNAMED = "[unknown]"


@dataclass(frozen=True)
class Occurrences:
    """Calls ordered by start; ``name``: index into ``names``."""

    names: list[Name]
    name: Int
    cpu: Int
    tid: Int
    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.start)

    def of(self, names: npt.NDArray[np.bool_]) -> Occurrences:
        """Calls whose names are chosen."""
        return self._take(names[self.name])

    def _take(self, at: npt.NDArray[np.bool_]) -> Occurrences:
        return Occurrences(
            self.names, *(getattr(self, f)[at] for f in ("name", "cpu", "tid", "start", "end"))
        )


def find(
    calls: pa.Table,
    symbols: Callable[[str], bool],
    wanted: Callable[[Name], bool],
    tids: Int | None = None,
    time: tuple[int, int] | None = None,
) -> Occurrences:
    """Calls in table ``calls`` of the functions ``wanted``, of some threads and within some time if given.

    ``symbols`` is called once per symbol, ``wanted`` once per distinct name that passes.
    """
    asked: dict[str, bool] = {}
    parts: list[tuple[Int, ...]] = []
    names: dict[Name, int] = {}
    for batch in _batches(calls):
        codes, words = zip(*(_codes(batch[c]) for c in _NAMED), strict=True)
        for symbol in words[1]:
            if symbol not in asked:
                asked[symbol] = symbols(str(symbol))
        good = np.array([asked[s] for s in words[1]] + [False], bool)
        keep = good[codes[1]]
        columns = [batch[c].to_numpy(zero_copy_only=False) for c in COLUMNS[3:]]
        if tids is not None:
            keep &= np.isin(columns[1], tids)
        if time is not None:
            keep &= (columns[2] < time[1]) & (columns[2] + columns[3] > time[0])
        at = np.flatnonzero(keep)
        if not len(at):
            continue
        unnamed = np.array([str(w) == UNNAMED for w in words[1]], bool)[codes[1][at]]
        address = np.where(unnamed, columns[4][at].astype(np.int64), 0)
        # One number for each combination: sorting rows of four would take ten times as long.
        key = codes[0][at].astype(np.int64)
        for c, w in zip(codes[1:], words[1:], strict=True):
            key = key * len(w) + c[at]
        which = pd.factorize(pd.factorize(key)[0] + (pd.factorize(address)[0] << 32))[0]
        first = np.unique(which, return_index=True)[1]
        unique = np.stack([*(c[at[first]].astype(np.int64) for c in codes), address[first]])
        of = np.full(unique.shape[1], -1)
        for i, four in enumerate(unique.T):
            kind, symbol, dso = (str(w[c]) for w, c in zip(words, four[:3], strict=True))
            name = kind, symbol + (f" {int(four[3]):#x}" if four[3] else ""), dso
            if wanted(name):
                of[i] = names.setdefault(name, len(names))
        found = of[which]
        of_wanted = found >= 0
        cpu, tid, start, dur = (c[at[of_wanted]].astype(np.int64) for c in columns[:4])
        parts.append((found[of_wanted], cpu, tid, start, start + dur))
    if not parts:
        none = np.zeros(0, np.int64)
        return Occurrences([], none, none, none, none, none)
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(joined[3], kind="stable")
    return Occurrences(list(names), *(column[order] for column in joined))


def _batches(calls: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from calls.select(list(COLUMNS)).to_batches(max_chunksize=1 << 22)


def _codes(column: pa.DictionaryArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.object_]]:
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_numpy(zero_copy_only=False)
