# SPDX-License-Identifier: GPL-2.0-only
"""Lines of a CSV of intervals to intervals in CLOCK_MONOTONIC, with names, threads and cores; what is rejected is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..clocks import ClockMap
from ..errors import BadInput
from ..losses import Ledger
from . import csv_file
from .declarations import MOST_CORE, MOST_NS, MOST_TID

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Different names, and the letters of one.
MOST_NAMES = 4096
LONGEST_NAME = 200
#: Lines of a file: a table of more takes more than the machines that this is made for.
MOST_LINES = 200_000_000
_FEWER = "a name is what an interval is compared within: give equal work the same name"

#: Of the authors' memcached: name, begin and end of each part of a request.
_PARTS = (("receive", "rx_nic", "rx_app"), ("service", "rx_app", "tx_app"), ("transmit", "tx_app", "tx_nic"))


@dataclass(frozen=True)
class Intervals:
    """Some intervals: ``name`` is a place in the names of their reader; times in ns, monotonic; -1: unknown."""

    name: I64
    start: I64
    stop: I64
    tid: I64
    cpu: I64

    def __len__(self) -> int:
        return len(self.name)

    def take(self, rows: Mask) -> Intervals:
        """The chosen rows."""
        return Intervals(*(getattr(self, of)[rows] for of in self.__dataclass_fields__))


class Reader:
    """The intervals of a file; ``names`` grows as it is read."""

    def __init__(self, path: Path, clock: ClockMap, ledger: Ledger) -> None:
        self._file = csv_file.open_file(path)
        self._clock, self._ledger = clock, ledger
        self._declared = self._file.declared
        if self._file.is_memcached and self._declared.clock is None:
            self._declared = replace(self._declared, clock="realtime")
        self.names: list[str] = []
        self._number: dict[str, int] = {}

    def __iter__(self) -> Iterator[Intervals]:
        n_lines = 0
        for table in csv_file.tables(self._file):
            n_lines += table.num_rows
            if n_lines > MOST_LINES:
                raise BadInput(
                    f"{self._file.path}: more than {MOST_LINES:,} lines", "cut the file into parts"
                )
            if self._file.is_memcached:
                yield from self._requests(table)
            else:
                yield self._good(*self._line(table))

    def _line(self, table: pa.Table) -> tuple[Intervals, dict[str, Mask]]:
        """Every line of a table, and by clock which of them are its."""
        n, declared = table.num_rows, self._declared
        intervals = Intervals(
            self._names(table["name"]),
            _numbers(table, "start", -1),
            _numbers(table, "stop", -1),
            _numbers(table, "thread", declared.thread),
            _numbers(table, "core", declared.core),
        )
        default = declared.clock or "monotonic"
        if "clock" not in table.column_names:
            return intervals, {default: np.ones(n, bool)}
        clocks = pc.fill_null(
            table["clock"].combine_chunks().dictionary_decode(), default
        ).dictionary_encode()
        words, codes = clocks.dictionary.to_pylist(), clocks.indices.to_numpy()
        if len(words) > MOST_NAMES:
            raise BadInput(
                f"{self._file.path}: more than {MOST_NAMES:,} clocks", "name one clock for all lines"
            )
        return intervals, {word: codes == code for code, word in enumerate(words)}

    def _requests(self, table: pa.Table) -> Iterator[Intervals]:
        done = _numbers(table, "completed", 0) != 0
        self._ledger.add("interval_not_completed", int(np.count_nonzero(~done)))
        n = table.num_rows
        for name, begin, end in _PARTS:
            start, stop = _numbers(table, begin, 0), _numbers(table, end, 0)
            # 0 is a stamp that was not taken.
            stamped = done & (start > 0) & (stop > 0)
            self._ledger.add("interval_not_stamped", int(np.count_nonzero(done & ~stamped)))
            every = Intervals(
                np.full(n, self._enter(name)),
                start,
                stop,
                np.full(n, self._declared.thread),
                np.full(n, self._declared.core),
            ).take(stamped)
            yield self._good(every, {self._declared.clock or "realtime": np.ones(len(every), bool)})

    def _names(self, column: pa.ChunkedArray) -> I64:
        parts = [np.zeros(0, np.int64)]
        for chunk in column.chunks:
            places = [self._enter(word or "") for word in chunk.dictionary.to_pylist()]
            nameless = self._enter("") if chunk.null_count else -1
            codes = pc.fill_null(chunk.indices, len(places)).to_numpy()
            parts.append(np.array([*places, nameless], np.int64)[codes])
        return np.concatenate(parts)

    def _enter(self, name: str) -> int:
        name = name[:LONGEST_NAME]
        if name not in self._number:
            if len(self.names) == MOST_NAMES:
                raise BadInput(f"{self._file.path}: more than {MOST_NAMES:,} names of intervals", _FEWER)
            self._number[name] = len(self.names)
            self.names.append(name)
        return self._number[name]

    def _good(self, found: Intervals, by_clock: dict[str, Mask]) -> Intervals:
        """Those that can be used, in CLOCK_MONOTONIC."""
        start, stop, ok = (
            np.zeros(len(found), np.int64),
            np.zeros(len(found), np.int64),
            np.zeros(len(found), bool),
        )
        sane = (found.start >= 0) & (found.start <= found.stop) & (found.stop <= MOST_NS)
        self._ledger.add("interval_impossible", int(np.count_nonzero(~sane)))
        for name, of in by_clock.items():
            rows = np.flatnonzero(of & sane)
            for times, into in ((found.start, start), (found.stop, stop)):
                into[rows], good = self._monotonic(times[rows], name)
                ok[rows] = good & (ok[rows] | (into is start))
        self._ledger.add("interval_outside_clock_map", int(np.count_nonzero(sane & ~ok)))
        # Two ends of one interval, each off by the clocks' bound, may change places.
        swapped = ok & (stop < start)
        self._ledger.add("interval_shorter_than_clocks_tell", int(np.count_nonzero(swapped)))
        stop = np.where(swapped, start, stop)
        tid = np.where((found.tid > 0) & (found.tid <= MOST_TID), found.tid, -1)
        cpu = np.where((found.cpu >= 0) & (found.cpu <= MOST_CORE), found.cpu, -1)
        placed = (tid > 0) | (cpu >= 0)
        self._ledger.add("interval_without_place", int(np.count_nonzero(ok & ~placed)))
        return Intervals(found.name, start, stop, tid, cpu).take(ok & placed)

    def _monotonic(self, times: I64, name: str) -> tuple[I64, Mask]:
        pair = self._declared.offsets.get(name)
        if pair is not None:
            self._ledger.add("interval_clock_by_offset", len(times), clock=name)
            times, name = times - pair.foreign_ns + pair.known_ns, pair.domain
        if name == "monotonic":
            return times, times >= 0
        if name != "tsc" and name not in self._clock.domains:
            known = ", ".join(["monotonic", "tsc", *(d for d in self._clock.domains if d != "monotonic")])
            raise BadInput(
                f"{self._file.path}: clock {name[:40]!r} is not one of this capture ({known})",
                f"declare it before the header: # offset {name[:40]} ITS_NS monotonic NS",
            )
        converted, _error, good = self._clock.convert_masked(times, name, "monotonic")
        return converted, good


def _numbers(table: pa.Table, name: str, default: int) -> I64:
    if name not in table.column_names:
        return np.full(table.num_rows, default, np.int64)
    return pc.fill_null(table[name], default).to_numpy()  # type: ignore[no-any-return]
