# SPDX-License-Identifier: GPL-2.0-only
"""Words as numbers: there are few words, but pieces are compared, chosen and joined by the million."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int


class Words:
    """A number for each word, in order of first occurrence; 0 is the empty word.

    >>> words = Words()
    >>> words.number("a"), words.number(""), words.of(pd.Series(["b", "a"], dtype="category")).tolist()
    (1, 0, [2, 1])
    """

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, word: str) -> int:
        """Of one word."""
        return self._numbers.setdefault(word, len(self._numbers))

    def numbers(self, words: list[str]) -> Int:
        """Of some."""
        return np.array([self.number(word) for word in words], np.int64)

    def of(self, column: pd.Series[Any]) -> Int:
        """Numbers of a column of words; null counts as the empty word."""
        if not isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype("category")
        known = np.append(self.numbers([str(word) for word in column.cat.categories]), 0)
        return known[column.cat.codes.to_numpy()]

    def texts(self) -> npt.NDArray[np.object_]:
        """Each word at the position of its number."""
        return np.array(list(self._numbers), object)

    def column(self, numbers: Int) -> pa.DictionaryArray:
        """A column of words again, with a dictionary of only the words in it."""
        used = np.zeros(len(self._numbers), bool)
        used[numbers] = True
        unique, codes = np.flatnonzero(used), (np.cumsum(used) - 1)[numbers]
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32)), pa.array(self.texts()[unique].tolist(), pa.string())
        )


def alike(columns: Iterable[Int]) -> Int:
    """A number for each combination of values in the rows, from 0 on.

    >>> alike([np.array([7, 7, 3]), np.array([1, 2, 1])]).tolist()
    [1, 2, 0]
    """
    key = np.zeros(1, np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        # Renumbered in each step, so that it stays below the number of rows.
        _, key = np.unique(key * len(values) + codes, return_inverse=True)
    return np.asarray(key, np.int64)
