# SPDX-License-Identifier: GPL-2.0-only
"""Sorts rows of a table that is larger than memory: sorted runs on disk, merged piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from . import schema
from .store import GROUP_ROWS, writing

Rows = npt.NDArray[Any]  # of a structured type

#: Number of rows of a run that are read at a time: this many are in memory for each of the overlapping runs.
UNIT_ROWS = 1 << 11
#: Number of rows that are sorted at a time; runs with larger overlaps need more.
PIECE_ROWS = GROUP_ROWS
#: Rows whose columns are read or written at a time: they stay in the processor's cache from one column to the next.
_CACHED_ROWS = 1 << 11


def row_type(name: str, *more: tuple[str, str]) -> np.dtype[Any]:
    """Type of a row of table ``name``, with ``more`` fields after its columns. Texts are numbers of words."""
    columns = [
        (c.name, np.int32 if pa.types.is_dictionary(c.type) else c.type.to_pandas_dtype())
        for c in schema.TABLES[name].columns
    ]
    return np.dtype([*columns, *more])


def columns_of(rows: Rows, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Some fields of the rows, each in memory of its own."""
    made = {name: np.empty(len(rows), rows.dtype[name]) for name in names}
    for first in range(0, len(rows), _CACHED_ROWS):
        part = slice(first, first + _CACHED_ROWS)
        few = rows[part]
        for name, values in made.items():
            values[part] = few[name]
    return made


def rows_of(dtype: np.dtype[Any], columns: Mapping[str, npt.NDArray[Any] | int]) -> Rows:
    """Rows with these columns, of which at least one is an array; a number is the same in all rows, and all other fields are 0."""
    n_rows = next(len(values) for values in columns.values() if isinstance(values, np.ndarray))
    rows = np.zeros(n_rows, dtype)
    for first in range(0, n_rows, _CACHED_ROWS):
        part = slice(first, first + _CACHED_ROWS)
        few = rows[part]
        for name, values in columns.items():
            few[name] = values[part] if isinstance(values, np.ndarray) else values
    return rows


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows, of one type. NumPy copies bytes a tenth as fast if it knows their fields; the same holds for ``rows[places]``, not for take."""
    as_bytes = np.dtype(("V", parts[0].dtype.itemsize))
    every: Rows = np.concatenate([part.view(as_bytes) for part in parts]).view(parts[0].dtype)
    return every


def to_table(name: str, rows: Rows, words: dict[str, list[str]], null: int) -> pa.Table:
    """``rows`` as table ``name``. ``words``: the texts of each text column; ``null``: the number that means none."""
    arrays: list[pa.Array] = []
    every = columns_of(rows, [column.name for column in schema.TABLES[name].columns])
    for column in schema.TABLES[name].columns:
        values = every.pop(column.name)
        array = pa.array(values, mask=values == null if column.nullable else None)
        if pa.types.is_dictionary(column.type):
            array = _texts(array, words[column.name])
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema.TABLES[name].arrow())


def _texts(numbers: pa.Array, words: list[str]) -> pa.DictionaryArray:
    if len(words) > len(numbers):
        # Every piece of a table has its own dictionary, with only the entries it needs.
        used = numbers.unique().drop_null()
        words, numbers = [words[i] for i in used.to_pylist()], pc.index_in(numbers, used)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(words, pa.string()))


@dataclass(frozen=True)
class _Unit:
    """Consecutive rows of a run; ``least``: the key of the first row."""

    least: int
    place: int
    n_rows: int


class Runs:
    """Rows with the fields ``dtype``, sorted by ``keys`` (most significant first); rows with equal keys keep their order.

    This holds within one run; between runs the keys must distinguish rows. ``path``: a file that is created.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], keys: tuple[str, ...]) -> None:
        self._path, self._dtype, self._keys = path, dtype, keys
        self._units: list[_Unit] = []
        self._n_rows = 0
        with writing(path):
            path.write_bytes(b"")

    def add(self, rows: Rows) -> None:
        """Keep ``rows`` as one more run."""
        rows = self._in_order(rows)
        with writing(self._path), self._path.open("ab") as file:
            rows.tofile(file)
        for first in range(0, len(rows), UNIT_ROWS):
            n_rows = min(UNIT_ROWS, len(rows) - first)
            self._units.append(_Unit(int(rows[self._keys[0]][first]), self._n_rows + first, n_rows))
        self._n_rows += len(rows)

    def merged(self, prepare: Callable[[Rows], Rows] = lambda rows: rows) -> Iterator[Rows]:
        """All rows in order, some at a time. ``prepare`` changes rows just read, without changing a run's order."""
        units = sorted(self._units, key=lambda unit: (unit.least, unit.place))
        held, n_held, enough = [np.empty(0, self._dtype)], 0, PIECE_ROWS
        with writing(self._path), self._path.open("rb") as file:
            for at, unit in enumerate(units, 1):
                limit = units[at].least if at < len(units) else None
                file.seek(unit.place * self._dtype.itemsize)
                held.append(prepare(np.fromfile(file, self._dtype, unit.n_rows)))
                n_held += len(held[-1])
                if limit is not None and n_held < enough:
                    continue
                rows = self._in_order(joined(held))
                # Rows that are not read yet come after these.
                n_ready = len(rows) if limit is None else int(np.searchsorted(rows[self._keys[0]], limit))
                if n_ready:
                    yield rows[:n_ready]
                held = [rows[n_ready:]]
                # Doubled each time, so that runs which all overlap are scanned only a few times.
                n_held, enough = len(held[0]), max(PIECE_ROWS, 2 * len(held[0]))

    def _in_order(self, rows: Rows) -> Rows:
        if self._is_in_order(rows):
            return rows  # as for rows in time order, where a copy would cost as much as the sort
        return rows.take(self._order(rows))

    def _is_in_order(self, rows: Rows) -> bool:
        equal = np.ones(max(len(rows) - 1, 0), bool)  # equal in all keys so far
        for key in self._keys:
            of = np.ascontiguousarray(rows[key])
            if (equal & (of[1:] < of[:-1])).any():
                return False
            equal &= of[1:] == of[:-1]
            if not equal.any():
                break
        return True

    def _order(self, rows: Rows) -> npt.NDArray[np.int64]:
        return np.lexsort([np.ascontiguousarray(rows[key]) for key in reversed(self._keys)])
