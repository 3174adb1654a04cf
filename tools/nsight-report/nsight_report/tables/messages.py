# SPDX-License-Identifier: GPL-2.0-only
"""Table ``messages``; only requested columns and rows are read.

A recording of minutes has millions of messages, and a diagnosis uses a few thousand. So questions about every
message use a few columns, in plain arrays, and whole rows are read only for the chosen ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .data_frames import numbers, to_pandas
from .reader import Reader

I64 = npt.NDArray[np.int64]
#: Chooses rows by some of their columns.
Keep = Callable[[pd.DataFrame], npt.NDArray[np.bool_]]


class Messages(Reader):
    """The table from a file of the store, or from memory. ``n_read``: values decoded so far, rows times columns.

    ``name``: another table to read in the same way; ``key``: the column with the numbers of its rows.

    >>> messages = Messages(Path("x.nsight/tables/messages.parquet"))    # doctest: +SKIP
    >>> messages.columns(["message_id", "latency_ns"])                   # doctest: +SKIP
    >>> messages.rows(np.array([17, 18]))                                # doctest: +SKIP
    """

    def __init__(self, source: pa.Table | Path, name: str = "messages") -> None:
        super().__init__(source, name)
        self.key = "request_id" if name == "requests" else "message_id"

    def columns(self, names: Sequence[str], keep: Keep | None = None) -> pd.DataFrame:
        """Some columns of every message, or of the messages that ``keep`` chooses by these columns; in table order.

        Numbers are int64 with -1 for null, words are categories.
        """
        names = list(dict.fromkeys(names))
        parts: list[list[npt.NDArray[np.int64]]] = [[] for _ in names]
        words: list[dict[str, int]] = [{} for _ in names]
        for group in self._groups(names):
            values = [numbers(group[name], of) for name, of in zip(names, words, strict=True)]
            if keep is not None:
                chosen = keep(_frame(names, values, words))
                values = [of[chosen] for of in values]
            for part, of in zip(parts, values, strict=True):
                part.append(of)
        joined = []
        for part in parts:
            joined.append(np.concatenate(part))
            part.clear()
        return _frame(names, joined, words)

    def batches(
        self, names: Sequence[str], words: dict[str, dict[str, int]]
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Some columns of every message as numbers, -1 for null, some messages at a time in table order.

        ``words``: the numbers of the texts of each text column; new ones are entered.
        """
        for group in self._groups(list(dict.fromkeys(names))):
            yield {name: numbers(group[name], words.setdefault(name, {})) for name in group.column_names}

    def rows(self, message_ids: I64, names: Sequence[str] | None = None) -> pd.DataFrame:
        """The rows of some messages, or some columns of them, in table order and as ``frames.to_pandas`` returns them.

        Numbers that no message has are left out.
        """
        wanted = np.unique(message_ids)
        names = self.column_names if names is None else list(names)
        found = [self.nothing(names)]
        for group in self._groups(list(dict.fromkeys([*names, self.key])), wanted):
            found.append(group.select(names).take(_places(group[self.key].to_numpy(), wanted)))
        return to_pandas(pa.concat_tables(found).unify_dictionaries().combine_chunks())

    def _groups(self, names: list[str], wanted: I64 | None = None) -> Iterator[pa.Table]:
        """Columns, a row group at a time; only groups that may have some of the (ascending) numbers ``wanted``. At least one."""
        groups = [n for n in range(self.n_groups) if wanted is None or self._may_have(n, wanted)]
        if not groups:
            yield self.nothing(names)
        for group in groups:
            table = self.read(group, names, threads=True)
            self.n_read += table.num_rows * len(names)
            yield table

    def _may_have(self, number: int, wanted: I64) -> bool:
        if not self.metadata:
            return True
        told = self.metadata.row_group(number).column(self.column_names.index(self.key)).statistics
        if told is None or not told.has_min_max:
            return True
        at = np.searchsorted(wanted, told.min)
        return bool(at < len(wanted) and wanted[at] <= told.max)


def _places(ids: npt.NDArray[Any], wanted: I64) -> I64:
    """Positions of the (ascending) numbers ``wanted``, ascending."""
    if (ids[1:] < ids[:-1]).any():
        return np.flatnonzero(np.isin(ids, wanted, kind="sort"))
    low, high = np.searchsorted(wanted, [ids[0], ids[-1] + 1]) if len(ids) else (0, 0)
    at = np.searchsorted(ids, wanted[low:high])
    return at[ids[at] == wanted[low:high]]


def _frame(
    names: list[str], values: list[npt.NDArray[np.int64]], words: list[dict[str, int]]
) -> pd.DataFrame:
    columns = {
        name: pd.Categorical.from_codes(of, pd.Index(list(known), dtype=object))
        if of.dtype == np.int32
        else of
        for name, of, known in zip(names, values, words, strict=True)
    }
    return pd.DataFrame(columns, copy=False)
