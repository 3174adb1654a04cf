# SPDX-License-Identifier: GPL-2.0-only
"""Intervals of a file in CLOCK_MONOTONIC, with names, threads and cores; rejected ones are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..clocks import ClockMap
from ..errors import BadInput
from ..losses import Ledger
from . import csv_file, otlp, perf_script
from .declarations import MOST_CORE, MOST_NS, MOST_TID

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Maximum number of distinct names, and of letters in one.
MOST_NAMES = 4096
LONGEST_NAME = 200
#: Maximum number of lines of a file: a larger table needs more memory than typical machines have.
MOST_LINES = 200_000_000
_FEWER = "a name is what an interval is compared within: give equal work the same name"

#: Columns of the authors' memcached: name, begin and end of each part of a request.
_PARTS = (("receive", "rx_nic", "rx_app"), ("service", "rx_app", "tx_app"), ("transmit", "tx_app", "tx_nic"))


@dataclass(frozen=True)
class Intervals:
    """Some intervals: ``name`` is an index into the names of their reader; times in ns, monotonic; -1: unknown.

    The last four are None if the file does not give them: the process of ``tid``, for spans only; when ``begin_tid`` on
    ``begin_cpu`` handed the interval over to ``tid``.
    """

    name: I64
    start: I64
    stop: I64
    tid: I64
    cpu: I64
    pid: I64 | None = None
    handover: I64 | None = None
    begin_tid: I64 | None = None
    begin_cpu: I64 | None = None

    def __len__(self) -> int:
        return len(self.name)

    def take(self, rows: Mask) -> Intervals:
        """The chosen rows."""
        if rows.all():
            return self
        columns: dict[str, Any] = {of: getattr(self, of) for of in self.__dataclass_fields__}
        return replace(self, **{of: values[rows] for of, values in columns.items() if values is not None})


class Reader:
    """The intervals of a file; ``names`` grows while it is read."""

    def __init__(self, path: Path, clock: ClockMap, ledger: Ledger) -> None:
        self._file = csv_file.open_file(path)
        self._clock, self._ledger = clock, ledger
        self._declared = self._file.declared
        self.names: list[str] = []
        self._number: dict[str, int] = {}

    def __iter__(self) -> Iterator[Intervals]:
        n_lines = 0
        for table in self._tables():
            n_lines += table.num_rows
            if n_lines > MOST_LINES:
                raise BadInput(
                    f"{self._file.path}: more than {MOST_LINES:,} lines", "cut the file into parts"
                )
            if self._file.form == "memcached":
                yield from self._requests(table)
            else:
                yield self._good(*self._line(table))

    def _tables(self) -> Iterator[pa.Table]:
        file = self._file
        if file.form == "otlp":
            return otlp.tables(file.path, file.place, file.n_before)
        if file.form == "perf":
            return perf_script.tables(file.path, file.place, file.declared.pairs, self._ledger)
        return csv_file.tables(file)

    def _line(self, table: pa.Table) -> tuple[Intervals, dict[str, Mask]]:
        """Every line of a table, and for each clock the mask of its lines."""
        n, declared = table.num_rows, self._declared
        there = {
            of: _numbers(table, column, -1) if column in table.column_names else None
            for of, column in (
                ("pid", "process"), ("handover", "handover"), ("begin_tid", "begin_thread"), ("begin_cpu", "begin_core")
            )
        }  # fmt: skip
        intervals = Intervals(
            self._names(table["name"]),
            _numbers(table, "start", -1),
            _numbers(table, "stop", -1),
            _numbers(table, "thread", declared.thread),
            _numbers(table, "core", declared.core),
            **there,
        )
        default = self._file.clock
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
            # 0 means that the timestamp was not taken.
            stamped = done & (start > 0) & (stop > 0)
            self._ledger.add("interval_without_timestamps", int(np.count_nonzero(done & ~stamped)))
            every = Intervals(
                np.full(n, self._enter(name)),
                start,
                stop,
                np.full(n, self._declared.thread),
                np.full(n, self._declared.core),
            ).take(stamped)
            yield self._good(every, {self._file.clock: np.ones(len(every), bool)})

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
        """The usable intervals, in CLOCK_MONOTONIC."""
        sane = (found.start >= 0) & (found.start <= found.stop) & (found.stop <= MOST_NS)
        self._ledger.add("interval_impossible", int(np.count_nonzero(~sane)))
        start, started = self._all_monotonic(found.start, sane, by_clock)
        stop, ok = self._all_monotonic(found.stop, started, by_clock)
        self._ledger.add("interval_outside_clock_map", int(np.count_nonzero(sane & ~ok)))
        # The two ends of an interval, each off by up to the clocks' bound, may be in reverse order.
        swapped = ok & (stop < start)
        self._ledger.add("interval_shorter_than_clocks_tell", int(np.count_nonzero(swapped)))
        stop = np.where(swapped, start, stop)
        tid, cpu = _within(found.tid, 1, MOST_TID), _within(found.cpu, 0, MOST_CORE)
        pid = None if found.pid is None else _within(found.pid, 1, MOST_TID)
        if pid is not None:
            # A process without thread means its first thread. An invalid thread number is kept for a caller that knows the process.
            tid = np.where((pid > 0) & (tid < 0), np.where(found.tid == -1, pid, 0), tid)
        placed = (tid > 0) | (cpu >= 0) | ((tid == 0) & (pid is not None))
        self._ledger.add("interval_without_place", int(np.count_nonzero(ok & ~placed)))
        good = Intervals(
            found.name, start, stop, tid, cpu, pid, **self._handed(found, start, stop, ok, by_clock)
        )
        return good.take(ok & placed)

    def _handed(
        self, found: Intervals, start: I64, stop: I64, ok: Mask, by_clock: dict[str, Mask]
    ) -> dict[str, I64 | None]:
        """Hand-overs within their intervals; others are counted as losses."""
        if found.handover is None or found.begin_tid is None:
            return {}
        begin_tid = _within(found.begin_tid, 1, MOST_TID)
        asked = ok & ((found.begin_tid != -1) | (found.handover != -1))
        at, known = self._all_monotonic(found.handover, asked & (found.handover >= 0), by_clock)
        known &= asked & (begin_tid > 0) & (start <= at) & (at <= stop)
        self._ledger.add("interval_handover_impossible", int(np.count_nonzero(asked & ~known)))
        cpu = found.begin_cpu if found.begin_cpu is not None else np.full(len(at), -1)
        cpu = np.where(known, _within(cpu, 0, MOST_CORE), -1)
        return {
            "handover": np.where(known, at, -1),
            "begin_tid": np.where(known, begin_tid, -1),
            "begin_cpu": cpu,
        }

    def _all_monotonic(self, times: I64, rows: Mask, by_clock: dict[str, Mask]) -> tuple[I64, Mask]:
        """Times of some rows in CLOCK_MONOTONIC, by the clock of each, and a mask of the known ones."""
        if len(by_clock) == 1 and rows.all():
            return self._monotonic(times, next(iter(by_clock)))
        into, ok = np.zeros(len(times), np.int64), np.zeros(len(times), bool)
        for name, of in by_clock.items():
            at = np.flatnonzero(of & rows)
            into[at], ok[at] = self._monotonic(times[at], name)
        return into, ok

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


def _within(values: I64, least: int, most: int) -> I64:
    return np.where((values >= least) & (values <= most), values, -1)
