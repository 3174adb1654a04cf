# SPDX-License-Identifier: GPL-2.0-only
"""The edge stream: taken branches that change a call stack, in blocks of columns.

Documentation/formats.md has the layout. Blocks are only appended, so the output of a killed run is readable.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

MAGIC = b"NSEDGE01"
BLOCK = struct.Struct("<IIQ")
EDGES, SYMBOLS, EVENTS, NAMES = 1, 2, 3, 4

CALL, RETURN, SYSCALL, SYSRET, INTERRUPT, IRET, BEGIN, END, TAIL_CALL, SOFTWARE_INTERRUPT = range(1, 11)
# They make the stack deeper.
CALLS = frozenset((CALL, SYSCALL, INTERRUPT, TAIL_CALL, SOFTWARE_INTERRUPT))
# They make it shallower.
RETURNS = frozenset((RETURN, SYSRET, IRET))

ERROR, OVERFLOW, TRUNCATED, LOST, PTWRITE, POWER, CBR, SWITCH_IN, SWITCH_OUT, PARTIAL, THROTTLED = range(
    1, 12
)

# Bits of perf's sample flags (PERF_IP_FLAG_* of tools/perf/util/event.h).
F_CALL, F_RETURN, F_SYSCALLRET, F_ASYNC, F_INTERRUPT = 1 << 1, 1 << 2, 1 << 4, 1 << 5, 1 << 6
F_BEGIN, F_END, F_VMENTRY, F_VMEXIT = 1 << 8, 1 << 9, 1 << 11, 1 << 12

EDGE_TYPES = "QQQiiiIIB"
EVENT_TYPES = "QiiiIQ"
EVENT_ROWS = 1 << 16  # of a block


class Event(NamedTuple):
    """Something that is no edge. cpu, pid and tid are -1 where unknown."""

    time: int
    cpu: int
    pid: int
    tid: int
    code: int
    value: int


def kind(flags: int) -> int:
    """Kind of an edge with these sample flags; 0: it leaves the call stack unchanged.

    A branch out of the traced code is an end, whatever instruction it was: a call into a kernel that is not
    traced has no return either. Entering a guest also counts as such.
    """
    if flags & (F_END | F_VMENTRY):
        return END
    if flags & (F_BEGIN | F_VMEXIT):
        return BEGIN
    if flags & F_INTERRUPT:
        if flags & F_RETURN:
            return IRET
        return INTERRUPT if flags & F_ASYNC else SOFTWARE_INTERRUPT
    if flags & F_SYSCALLRET:
        return SYSRET if flags & F_RETURN else SYSCALL
    if flags & F_CALL:
        return CALL
    return RETURN if flags & F_RETURN else 0


def column(typecode: str, values: Sequence[int]) -> array[int]:
    """Values in the file's representation."""
    try:
        made = array(typecode, values)
    except OverflowError:
        # perf's tables have kernel addresses as negative numbers.
        made = array(typecode.lower(), values)
    if sys.byteorder != "little":
        made.byteswap()
    return made


def block(block_type: int, n_rows: int, payload: bytes) -> bytes:
    """A block in the file's representation."""
    payload += bytes(-len(payload) % 8)
    return BLOCK.pack(block_type, n_rows, len(payload)) + payload


class Name(NamedTuple):
    """The name of a thread from a time on."""

    time: int
    pid: int
    tid: int
    name: bytes


def names_block(rows: Sequence[Name]) -> bytes:
    """A block of names of threads, 16 bytes each."""
    times, pids, tids, names = zip(*rows)
    made = [column(t, values).tobytes() for t, values in zip("Qii", (times, pids, tids))]
    return block(NAMES, len(rows), b"".join([*made, *(name[:16].ljust(16, b"\0") for name in names)]))


class Writer:
    """Writes an edge stream. Without a file it only numbers the symbols."""

    def __init__(self, file: BinaryIO | None, append: bool = False) -> None:
        self._file = file
        self._ids: dict[tuple[str, str], int] = {}
        self.names: list[tuple[str, str]] = []
        self._written = 0
        if append:  # events and names only: the symbol numbers belong to another writer
            return
        if file is not None:
            file.write(MAGIC)
        self.symbol("", "")  # 0: unknown

    def symbol(self, symbol: str, dso: str) -> int:
        """Number of ``symbol`` in ``dso``."""
        key = (symbol, dso)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self.names)
            self.names.append(key)
        return number

    def _symbols(self) -> bytes:
        new = self.names[self._written :]
        self._written = len(self.names)
        text = "".join(f"{name}\0{dso}\0" for name, dso in new)
        return block(SYMBOLS, len(new), text.encode("utf-8", "surrogateescape")) if new else b""

    def edges(self, columns: Sequence[Sequence[int]]) -> None:
        """Write a block: time, from, to, pid, tid, cpu, from_sym, to_sym, kind. Its symbols come first."""
        if self._file is not None and columns[0]:
            made = b"".join(column(t, values).tobytes() for t, values in zip(EDGE_TYPES, columns))
            self._file.write(self._symbols() + block(EDGES, len(columns[0]), made))

    def events(self, columns: Sequence[Sequence[int]]) -> None:
        """Write events, columns as in Event. They are not in order with the edges."""
        if self._file is None or not columns:
            return
        for first in range(0, len(columns[0]), EVENT_ROWS):
            part = [values[first : first + EVENT_ROWS] for values in columns]
            made = b"".join(column(t, values).tobytes() for t, values in zip(EVENT_TYPES, part))
            self._file.write(block(EVENTS, len(part[0]), made))

    def thread_names(self, rows: Sequence[Name]) -> None:
        """Write a block of names."""
        if self._file is not None and rows:
            self._file.write(names_block(rows))


def read(file: BinaryIO) -> Iterator[tuple[int, list[Sequence[int]] | list[tuple[str, str]]]]:
    """Blocks of a stream: type and columns, or names for SYMBOLS. Ends where the file is cut."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("not an edge stream")
    while len(head := file.read(BLOCK.size)) == BLOCK.size:
        block_type, n_rows, size = BLOCK.unpack(head)
        payload = file.read(size)
        if len(payload) < size:
            return
        if block_type == SYMBOLS:
            words = payload.decode("utf-8", "surrogateescape").split("\0")
            yield block_type, list(zip(words[0 : 2 * n_rows : 2], words[1 : 2 * n_rows : 2]))
            continue
        if block_type not in (EDGES, EVENTS):
            continue
        columns: list[Sequence[int]] = []
        at = 0
        for typecode in EDGE_TYPES if block_type == EDGES else EVENT_TYPES:
            made = array(typecode)
            end = at + n_rows * made.itemsize
            made.frombytes(payload[at:end])
            if sys.byteorder != "little":
                made.byteswap()
            columns.append(made)
            at = end
        yield block_type, columns
