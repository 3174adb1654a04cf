# SPDX-License-Identifier: GPL-2.0-only
"""Tables of what cores and threads did; only requested parts are read.

``calls`` of a recording of seconds has 10^8 rows, and a diagnosis uses those within the lifetimes of few
messages. So nothing is ever in memory as a whole: row groups are read one by one, without groups that
statistics exclude, and only the requested rows are kept.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..interval_joins import members
from .reader import Reader
from .store import KINDS, LAST_ENDS

I64 = npt.NDArray[np.int64]

#: Number of groups that are decoded at a time.
_THREADS = min(4, os.cpu_count() or 1)
_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Groups:
    """What is known about each row group: rows, cores (or threads) from ``low`` to ``high``, kinds of rows (or None).

    Its rows begin between ``start`` and ``last`` (equal if nothing is known), and end by ``end``.
    """

    n_rows: I64
    low: I64
    high: I64
    start: I64
    last: I64
    end: I64
    kinds: list[set[str]] | None = None

    def having(self, column: str, values: Sequence[str]) -> list[int]:
        """Groups that may have rows with one of ``values`` in ``column``."""
        every = range(len(self.n_rows))
        if column != "kind" or self.kinds is None:
            return list(every)
        return [number for number in every if not self.kinds[number].isdisjoint(values)]


class IntervalTable(Reader):
    """A table of ``schema.py`` whose rows are intervals (``start_ns`` to ``end_ns``, or ``dur_ns`` long) of a ``cpu`` or ``tid``.

    From a file of the store, or from a table in memory, in any order. ``n_read``: rows decoded so far.

    >>> calls = IntervalTable(Path("x.nsight/tables/calls.parquet"))                   # doctest: +SKIP
    >>> calls.overlapping(cpu, start_ns, end_ns, ["symbol", "parent_id"])       # doctest: +SKIP
    """

    def __init__(self, source: pa.Table | Path, group: str = "cpu") -> None:
        super().__init__(source)
        self._group = group
        self._known: _Groups | None = None
        self._found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], pa.Table] = {}

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The whole table, for tables that are known to be small."""
        return _join(list(self.batches(columns)))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Every row, row group by row group."""
        names = list(columns) if columns is not None else self.column_names
        yield from self._each(range(len(self._groups().n_rows)), names, lambda table: table)

    def holds(self, column: str, value: str) -> bool:
        """Whether any row has ``value`` in ``column``; stops reading at the first."""
        wanted = pa.array([value], pa.string())
        groups = self._groups().having(column, [value])
        return any(
            is_in(table[column], wanted).any()
            for number in groups
            for table in self._each([number], [column], lambda table: table)
        )

    def where(self, column: str, values: Sequence[str], columns: Sequence[str]) -> pa.Table:
        """Rows whose ``column`` has one of some words. Kept in memory, since every stage needs the same few rows."""
        key = column, tuple(values), tuple(columns)
        if key not in self._found:
            self._found[key] = _join(list(self.each_where(column, values, columns)))
        return self._found[key]

    def each_where(self, column: str, values: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same, a row group at a time, and not kept; at least one table."""
        wanted = pa.array(values, pa.string())

        def chosen(table: pa.Table) -> pa.Table:
            rows = np.flatnonzero(is_in(table[column], wanted))
            return table.select(columns).take(pa.array(rows))

        names = list(dict.fromkeys([column, *columns]))
        groups = self._groups().having(column, values) if len(values) else []
        yield from self._each(groups, names, chosen)

    def overlapping(self, group: I64, start: I64, end: I64, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows that overlap any of the intervals [start, end) of ``group`` (a core, or thread), in the table's order.

        A call contains its callees: so the callers of each call are returned too, up to the top. Intervals may
        overlap each other; those of group -1 are left out. Rows without length overlap the intervals that contain them.
        """
        names = list(columns) if columns is not None else self.column_names
        return _join(list(self.pieces(group, start, end, names)))

    def pieces(
        self, group: I64, start: I64, end: I64, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The same, a row group at a time; at least one table."""
        names = list(columns) if columns is not None else self.column_names
        read, hit = self._overlapping(group, start, end, names)
        groups = self._candidates(_intervals(group, start, end))
        yield from self._each(groups, read, lambda t: t.select(names).take(pa.array(hit(t))))

    def _overlapping(
        self, group: I64, start: I64, end: I64, columns: Sequence[str]
    ) -> tuple[list[str], Callable[[pa.Table], I64]]:
        """Columns to read, and a function that finds the rows that overlap intervals."""
        length = "dur_ns" if "dur_ns" in self.column_names else "end_ns"
        wanted = _intervals(group, start, end)

        def hit(table: pa.Table) -> I64:
            of, begin, until = (table[c].to_numpy() for c in (self._group, "start_ns", length))
            until = begin + until if length == "dur_ns" else until
            return np.flatnonzero(_overlap(of, begin, until, wanted))

        return list(dict.fromkeys([*columns, self._group, "start_ns", length])), hit

    def overlapping_and_next(self, group: I64, start: I64, end: I64, columns: Sequence[str]) -> pa.Table:
        """The same, and after each of them the row that follows it in the table."""
        read, hit = self._overlapping(group, start, end, columns)
        found, before = [], False
        wanted = set(self._candidates(_intervals(group, start, end)))
        for number in range(len(self._groups().n_rows)):
            if number not in wanted and not before:
                continue
            for table in self._each([number], read, lambda table: table):
                rows = hit(table)
                before, first = bool(len(rows) and rows[-1] == table.num_rows - 1), before
                rows = np.concatenate([rows, rows + 1, np.zeros(int(first), np.int64)])
                rows = np.unique(rows[rows < table.num_rows])
                found.append(table.select(columns).take(pa.array(rows)))
        return _join(found) if found else self.nothing(columns)

    def span(self) -> tuple[int, int] | None:
        """Begin of its first row and end of its last; None if there are none."""
        if not self.num_rows:
            return None
        if self._table is not None:
            first, last = (self._table[n] for n in _times(self.column_names))
            return pc.min(first).as_py(), pc.max(last).as_py()
        return int(self._groups().start.min()), int(self._groups().end.max())

    def groups(self, most: int = 4096) -> I64:
        """Its cores (or threads), from the lowest to the highest; at most ``most``, whatever the file's metadata says."""
        if not self.num_rows:
            return np.zeros(0, np.int64)
        if self._table is not None:
            found = np.unique(self._table[self._group].to_numpy())
            return found[found >= 0][:most].astype(np.int64)
        known = self._groups()
        first = max(int(known.low.min()), 0)
        return np.arange(first, min(int(known.high.max()), first + most - 1) + 1)

    def rows_per_ns(self) -> float:
        """Average number of rows per ns of a core."""
        known = self._groups()
        # From the first begin to the last begin, not to an end: a group of calls does not always have its end.
        told = known.last > known.start
        span = float((known.last[told] - known.start[told]).sum())
        return int(known.n_rows[told].sum()) / span if span else 0.0

    def _candidates(self, wanted: dict[int, tuple[I64, I64]]) -> list[int]:
        known = self._groups()
        needed = np.zeros(len(known.n_rows), bool)
        for group, (low, high) in wanted.items():
            # The first interval that ends after the group's begin must begin before its end.
            at = np.searchsorted(high, known.start, "right")
            inside = at < len(low)
            inside[inside] = low[at[inside]] < known.end[inside]
            needed |= inside & (known.low <= group) & (group <= known.high)
        return np.flatnonzero(needed).tolist()

    def _groups(self) -> _Groups:
        if self._known is None:
            self._known = _statistics(self.metadata, self._group) if self.metadata else _whole(self.num_rows)
        return self._known

    def _each(
        self, groups: Sequence[int], columns: list[str], work: Callable[[pa.Table], pa.Table]
    ) -> Iterator[pa.Table]:
        """The results of ``work`` for each of the row groups, in order; at least one table."""
        if not len(groups):
            yield work(self.nothing(columns))
            return

        def one(number: int) -> pa.Table:
            return work(self.read(number, columns))

        with ThreadPoolExecutor(_THREADS) as pool:
            ahead: deque[Future[pa.Table]] = deque()
            for number in groups:
                self.n_read += int(self._groups().n_rows[number])
                ahead.append(pool.submit(one, number))
                if len(ahead) > _THREADS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()


def _statistics(metadata: pq.FileMetaData, group: str) -> _Groups:
    names = metadata.schema.to_arrow_schema().names
    begin, until = (names.index(name) for name in _times(names))
    rows = []
    for number in range(metadata.num_row_groups):
        of = metadata.row_group(number)
        # Without statistics a group may contain anything.
        low, high, start, last, end = 0, _MAX, -_MAX, -_MAX, _MAX
        told = of.column(names.index(group)).statistics
        if told is not None and told.has_min_max:
            low, high = told.min, told.max
        told = of.column(begin).statistics
        if told is not None and told.has_min_max:
            start, last = told.min, told.max
        told = of.column(until).statistics
        if told is not None and told.has_min_max and "dur_ns" not in names:
            end = told.max
        rows.append((of.num_rows, low, high, start, last, end))
    known = _Groups(*np.array(rows, np.int64).reshape(-1, 6).T)
    ends, kinds = _told(metadata, LAST_ENDS, int), _told(metadata, KINDS, list)
    if ends is not None and all(abs(end) <= _MAX for end in ends):
        known = replace(known, end=np.array(ends, np.int64))
    if kinds is not None and all(isinstance(word, str) for words in kinds for word in words):
        known = replace(known, kinds=[set(words) for words in kinds])
    return known


def _told(metadata: pq.FileMetaData, key: str, kind: type) -> list[Any] | None:
    """The writer's metadata for each row group; None if there is none that fits."""
    try:
        told = json.loads((metadata.metadata or {}).get(key.encode(), b""))
    except (ValueError, RecursionError):
        return None
    fits = isinstance(told, list) and len(told) == metadata.num_row_groups
    return told if fits and all(isinstance(of, kind) for of in told) else None


def _times(names: list[str]) -> tuple[str, str]:
    """Columns of begin and end; calls have no end column, and neither have events."""
    return (
        ("ts_ns", "ts_ns")
        if "ts_ns" in names
        else ("start_ns", "end_ns" if "end_ns" in names else "start_ns")
    )


def _whole(n_rows: int) -> _Groups:
    one = np.ones(1, np.int64)
    return _Groups(one * n_rows, one * 0, one * _MAX, one * -_MAX, one * -_MAX, one * _MAX)


def _intervals(group: I64, start: I64, end: I64) -> dict[int, tuple[I64, I64]]:
    # With one sort: with thousands of threads, a pass for each would take longer than everything else.
    return {g: union(start[rows], end[rows]) for g, rows in members(group) if g >= 0}


def _overlap(of: I64, start: I64, end: I64, wanted: dict[int, tuple[I64, I64]]) -> npt.NDArray[np.bool_]:
    hit = np.zeros(len(of), bool)
    if not len(of):
        return hit
    # A row group usually belongs to one core, and is in order.
    if of[0] == of[-1] and (of == of[0]).all():
        return _inside(start, end, *wanted[int(of[0])]) if int(of[0]) in wanted else hit
    for group, rows in members(of):
        if group in wanted:
            hit[rows] = _inside(start[rows], end[rows], *wanted[group])
    return hit


def _inside(start: I64, end: I64, low: I64, high: I64) -> npt.NDArray[np.bool_]:
    """Whether each ends after the begin of the first interval that ends after its own begin."""
    low = np.append(low, _MAX)
    if (start[1:] >= start[:-1]).all():
        edges = np.concatenate([[0], np.searchsorted(start, high), [len(start)]])
        return np.repeat(low, np.diff(edges)) < end
    return low[np.searchsorted(high, start, "right")] < end


def union(start: I64, end: I64) -> tuple[I64, I64]:
    """Overlapping intervals merged, in order."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    new = np.append(True, start[1:] > end[:-1])
    return start[new], end[np.append(np.flatnonzero(new)[1:] - 1, len(end) - 1)]


def is_in(column: pa.ChunkedArray, wanted: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a text column that have one of some words; tested once per word, not once per row."""
    parts = [np.zeros(0, bool)]
    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        words = pc.is_in(encoded.dictionary, wanted).to_numpy(zero_copy_only=False).astype(bool)
        parts.append(words[encoded.indices.to_numpy()])
    return np.concatenate(parts)


def _join(tables: list[pa.Table]) -> pa.Table:
    """One table with one dictionary per column."""
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
