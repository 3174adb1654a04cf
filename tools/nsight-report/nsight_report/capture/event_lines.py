# SPDX-License-Identifier: GPL-2.0-only
"""Separate the event lines of events.tsv from everything else in it, at native speed.

The file mixes three things: event lines, the probes' own counts, and whatever bpftrace says.
A line is taken for an event only if its bytes can be one; all others are returned as text
so that the caller can read the counts in them and account for the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

N_FIELDS = 24
N_MESSAGE_FIELDS = 28
KINDS = "AHRSXTO"
_BLOCK = 8 << 20
_MAX_NOTES = 100_000  # a foreign file must not fill the memory with its lines
_COUNT = re.compile(rb"@n\[\"?([A-Za-z_0-9]{1,32})\"?\]: (\d{1,18})$")
_LOST = re.compile(rb"Lost (\d{1,18}) events$")
_HARMLESS = re.compile(rb"(Attaching \d+ probes?\.\.\.|Attached \d+ probes?|\s*)$")

_allowed = np.zeros(256, dtype=bool)
_allowed[list(b"0123456789abcdefx\t\n-" + KINDS.encode())] = True
_is_kind = np.zeros(256, dtype=bool)
_is_kind[list(KINDS.encode())] = True


@dataclass
class Notes:
    """Content of the lines that are no events.

    ``counts``: the probes' own counts, last (largest) value of each key. ``reported_lost``:
    events that bpftrace itself says it lost. ``ended``: the end marker was seen. ``foreign``:
    lines that do not belong here. ``truncated``: the last line has no end of line.
    """

    counts: dict[str, int] = field(default_factory=dict)
    reported_lost: int = 0
    ended: bool = False
    foreign: int = 0
    truncated: int = 0

    def take(self, line: bytes) -> None:
        """Account for one line that is no event."""
        if match := _COUNT.match(line):
            key = match[1].decode()
            self.counts[key] = max(self.counts.get(key, 0), int(match[2]))
        elif match := _LOST.match(line):
            self.reported_lost += int(match[1])
        elif line.startswith(b"#"):
            self.ended |= line.rstrip() == b"#end"
        elif not _HARMLESS.match(line):
            self.foreign += 1


def event_blocks(file: BinaryIO, notes: Notes) -> Iterator[tuple[bytes, bytes]]:
    """Yield blocks of whole lines of ``file``, with events and with messages; everything else goes to ``notes``.

    These are lines of 24 or of 28 tab-separated fields that start with a known kind and
    consist of the characters of numbers. Blocks are read, not mapped: mapped data
    stays in memory.
    """
    size = os.fstat(file.fileno()).st_size
    taken = 0
    position = 0
    while position < size:
        file.seek(position)
        raw = np.frombuffer(file.read(min(_BLOCK, size - position)), dtype=np.uint8)
        stop = position + len(raw)
        ends = np.flatnonzero(raw == 10)
        if not len(ends):
            if stop < size and len(raw):
                notes.foreign += 1  # longer than any valid line
                position = stop
                continue
            notes.truncated += 1
            break
        raw = raw[: ends[-1] + 1]
        position += len(raw)
        if stop == size and position < size:
            notes.truncated += 1
            position = size
        n_fields = _fields(raw, ends)
        starts = np.concatenate(([0], ends[:-1] + 1))
        rest = np.flatnonzero((n_fields != N_FIELDS) & (n_fields != N_MESSAGE_FIELDS))
        for i in rest[: max(0, _MAX_NOTES - taken)]:
            notes.take(raw[starts[i] : ends[i]].tobytes())
        taken += len(rest)
        if taken > _MAX_NOTES:
            notes.foreign += min(len(rest), taken - _MAX_NOTES)
        of_line = np.repeat(n_fields, ends - starts + 1)
        yield raw[of_line == N_FIELDS].tobytes(), raw[of_line == N_MESSAGE_FIELDS].tobytes()


def _fields(raw: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number of fields of the lines that end at ``ends``; 0 for lines that no probe writes."""
    starts = np.concatenate(([0], ends[:-1] + 1))
    second = raw[np.minimum(starts + 1, len(raw) - 1)]
    good = _is_kind[raw[starts]] & (second == 9)
    tabs = np.searchsorted(np.flatnonzero(raw == 9), np.concatenate((starts, [len(raw)])))
    odd = np.flatnonzero(~_allowed[raw])
    good[np.searchsorted(ends, odd)] = False
    return np.where(good, np.diff(tabs) + 1, 0)
