# SPDX-License-Identifier: GPL-2.0-only
"""From perf's callbacks to blocks of the edge stream.

perf has two ways to call a script. For `process_event` it makes two dictionaries with about thirty entries per
sample, 9 us. For the tables of a database (which export-to-sqlite.py uses) it makes one tuple with numbers of
symbols and threads, 1.6 us, and passes each symbol once. The edges are the same; tests compare them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from . import edge_stream as stream
from .summary import Summary

BLOCK_ROWS = 16384
# PERF_SYNTH_INTEL_* of tools/perf/util/event.h, in order.
SYNTHESISED = ("ptwrite", "mwait", "pwre", "exstop", "pwrx", "cbr")
FLAG_CHARS = "bcrosyiABExghDt"  # PERF_IP_FLAG_CHARS, one per bit


class _Kinds(dict[Any, int]):
    """Kind of an edge by its flags, computed once for each combination."""

    def __init__(self, bits: Callable[[Any], int]) -> None:
        super().__init__()
        self._bits = bits

    def __missing__(self, flags: Any) -> int:
        made = self[flags] = stream.kind(self._bits(flags))
        return made


def _bits_of_chars(flags: str) -> int:
    return sum(1 << FLAG_CHARS.index(c) for c in set(flags) if c in FLAG_CHARS)


def synthesised(name: str, raw: bytes) -> tuple[int, int] | None:
    """Code and value of an event that perf makes from a packet; None if it is not needed.

    The value of a power event has its packet in the top byte, and below it the fields of the packet, at least
    one byte each.
    """
    if name == "cbr" and len(raw) >= 4:
        return stream.CBR, raw[0]
    if name == "exstop":
        return stream.POWER, 3 << 56
    if len(raw) < 12:
        return None
    payload = struct.unpack_from("<Q", raw, 4)[0]
    if name == "ptwrite":
        return stream.PTWRITE, payload
    if name == "mwait":  # hints, extensions
        return stream.POWER, 1 << 56 | payload & 0x3_0000_00FF
    if name == "pwre":  # C-state, sub-state, by hardware
        fields = payload >> 12 & 15 | (payload >> 8 & 15) << 8 | (payload >> 7 & 1) << 16
        return stream.POWER, 2 << 56 | fields
    if name == "pwrx":  # last C-state, deepest one, wake reasons
        fields = payload >> 4 & 15 | (payload & 15) << 8 | (payload >> 8 & 15) << 16
        return stream.POWER, 4 << 56 | fields
    return None


class Collector:
    """Collects rows from perf, and passes on blocks of edges."""

    def __init__(self, writer: stream.Writer, summary: Summary) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.events: list[stream.Event] = []
        self.n_edges = 0
        self._writer = writer
        self._summary = summary

    def _hand_on(self, columns: Sequence[Sequence[int]]) -> None:
        kinds = columns[-1]
        if 0 in kinds:  # jumps, of --itrace=b
            columns = list(zip(*(row for row in zip(*columns) if row[-1]))) or [()] * len(columns)
        if columns[0]:
            self.n_edges += len(columns[0])
            self._writer.edges(columns)
            self._summary.edges(columns)


class Tables(Collector):
    """Rows of perf's sample table, which name threads and symbols by number."""

    # Columns of a row: event, thread, symbol, address, time, core; symbol and address it went to; flags.
    _EVENT, _THREAD, _SYM, _IP, _TIME, _CPU, _TO_SYM, _TO_IP, _FLAGS = 1, 3, 6, 8, 9, 10, 12, 14, 19

    def __init__(self, writer: stream.Writer, summary: Summary) -> None:
        super().__init__(writer, summary)
        self._kinds = _Kinds(int)
        self._branches: set[int] = set()
        self._pid: dict[int, int] = {0: -1}
        self._tid: dict[int, int] = {0: -1}
        self._dso: dict[int, str] = {0: ""}
        self._symbol: dict[int, int] = {0: 0}

    def event_type(self, number: int, name: str) -> None:
        """An event that perf knows: only events named branches are edges."""
        if name.startswith("branches"):
            self._branches.add(number)

    def thread(self, number: int, pid: int, tid: int) -> None:
        """A thread, before the first row that refers to it."""
        self._pid[number] = pid
        self._tid[number] = tid

    def dso(self, number: int, short_name: str, long_name: str) -> None:
        """An object. perf script uses its long name, except for those of the kernel, such as [kernel.kallsyms]."""
        self._dso[number] = short_name if short_name.startswith("[") else long_name

    def symbol(self, number: int, dso: int, start: int, end: int, name: str) -> None:
        """A symbol. perf makes an empty one, named unknown, for each address without a symbol."""
        unknown = start == end and name == "unknown"
        self._symbol[number] = self._writer.symbol("" if unknown else name, self._dso.get(dso, ""))

    def packet(self, config: int, raw: bytes) -> None:
        """Content of the packet from which the last row was made."""
        if config < len(SYNTHESISED):
            found = synthesised(SYNTHESISED[config], raw)
            row = self.rows[-1]
            thread = row[self._THREAD]
            if found:
                where = (row[self._TIME], row[self._CPU], self._pid[thread], self._tid[thread])
                self.events.append(stream.Event(*where, *found))

    def switch(self, time: int, cpu: int, thread_out: int, thread_in: int, flags: int) -> None:
        """A context switch, if perf reports it."""
        code = stream.SWITCH_OUT if flags & 1 else stream.SWITCH_IN
        thread = thread_out if flags & 1 else thread_in
        pid, tid = self._pid.get(thread, -1), self._tid.get(thread, -1)
        self.events.append(stream.Event(time, cpu, pid, tid, code, flags >> 1 & 1))

    def flush(self) -> None:
        """Pass on the rows collected so far."""
        columns = list(zip(*self.rows))
        if columns and not set(columns[self._EVENT]) <= self._branches:
            columns = list(zip(*(row for row in self.rows if row[self._EVENT] in self._branches)))
        self.rows.clear()
        if not columns:
            return
        threads = columns[self._THREAD]
        self._hand_on(
            (
                columns[self._TIME],
                columns[self._IP],
                columns[self._TO_IP],
                list(map(self._pid.__getitem__, threads)),
                list(map(self._tid.__getitem__, threads)),
                columns[self._CPU],
                list(map(self._symbol.__getitem__, columns[self._SYM])),
                list(map(self._symbol.__getitem__, columns[self._TO_SYM])),
                list(map(self._kinds.__getitem__, columns[self._FLAGS])),
            )
        )


class Events(Collector):
    """Rows made from the arguments of process_event."""

    def __init__(self, writer: stream.Writer, summary: Summary) -> None:
        super().__init__(writer, summary)
        self._kinds = _Kinds(_bits_of_chars)

    def process_event(self, given: dict[str, Any]) -> None:
        """One sample."""
        sample = given["sample"]
        name = given["ev_name"]
        if not name.startswith("branches"):
            found = synthesised(name.partition(":")[0], given["raw_buf"])
            if found:
                where = (sample["time"], sample["cpu"], sample["pid"], sample["tid"])
                self.events.append(stream.Event(*where, *found))
            return
        symbol = self._writer.symbol
        self.rows.append(
            (
                sample["time"],
                sample["ip"],
                sample["addr"],
                sample["pid"],
                sample["tid"],
                sample["cpu"],
                symbol(given.get("symbol", ""), given.get("dso", "")),
                symbol(sample.get("addr_symbol", ""), sample.get("addr_dso", "")),
                self._kinds[sample.get("flags", "")],
            )
        )
        if len(self.rows) >= BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Pass on the rows collected so far."""
        columns = list(zip(*self.rows))
        self.rows.clear()
        if columns:
            self._hand_on(columns)
