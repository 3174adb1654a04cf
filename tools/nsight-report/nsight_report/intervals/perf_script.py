# SPDX-License-Identifier: GPL-2.0-only
"""Text of ``perf script`` as tables of intervals: pairs of events of one thread, as ``perf probe`` or ``ptwrite`` make them.

Without a line ``# pair NAME BEGIN END``, events are paired by their names: ``x_begin`` and ``x_end``, ``x_start`` and
``x_stop`` or ``x_end``, ``x_entry`` and ``x_exit``, or ``x`` and ``x__return``, perf probe's name for the return of ``x``.
They may nest. A ptwrite event is named after its payload: ``ptwrite:0x2a``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import files
from ..errors import BadInput
from ..losses import Ledger

I64 = npt.NDArray[np.int64]

_BLOCK = 8 << 20
_LONGEST_LINE = 1 << 16
_ROWS = 1 << 20
MOST_EVENTS = 100_000_000
MOST_NAMES = 65_536
#: comm, pid/, tid, [cpu], time, the event, and the payload of a ptwrite.
EVENT = re.compile(
    rb"^[ \t]*(?:\S.{0,63}?[ \t]+)??(?:\d{1,10}/)?(\d{1,10})[ \t]+(?:\[(\d{1,5})\][ \t]+)?(\d{1,10})\.(\d{6}(?:\d{3})?):[ \t]+"
    rb"(?:\d+[ \t]+)?([A-Za-z_][\w.:-]{0,199}?):(?=[ \t\r\n]|$)(?:[ \t]+IP:[ \t]+\d[ \t]+payload:[ \t]+(0x[0-9a-f]{1,16}))?",
    re.MULTILINE,
)
_ENDS = (("_begin", "_end"), ("_start", "_stop"), ("_start", "_end"), ("_entry", "_exit"), ("", "__return"))
_HINT = "perf script --ns -F comm,tid,cpu,time,event prints them; '# pair NAME BEGIN END' before them says which belong together"


@dataclass
class _Events:
    """Columns of events, in pieces; ``names``: names by number."""

    names: dict[bytes, int] = field(default_factory=dict)
    pieces: list[npt.NDArray[np.int64]] = field(default_factory=list)
    n: int = 0

    def add(self, found: list[tuple[bytes, ...]], where: Path) -> None:
        self.n += len(found)
        if self.n > MOST_EVENTS:
            raise BadInput(f"{where}: more than {MOST_EVENTS:,} events", "cut the file into parts")
        if not found:
            return
        tid, cpu, seconds, part, name, payload = zip(*found, strict=True)
        words = [n + b":" + p if p else n for n, p in zip(name, payload, strict=True)]
        for word in dict.fromkeys(words):
            self.names.setdefault(word, len(self.names))
        if len(self.names) > MOST_NAMES:
            raise BadInput(
                f"{where}: more than {MOST_NAMES:,} names of events", "print fewer events: perf script -e"
            )
        ns = np.array([p.ljust(9, b"0") for p in part]).astype(np.int64)
        rows = np.stack(
            [
                np.array(seconds).astype(np.int64) * 1_000_000_000 + ns,
                np.array(tid).astype(np.int64),
                np.array([c or b"-1" for c in cpu]).astype(np.int64),
                np.array([self.names[word] for word in words], np.int64),
            ]
        )
        self.pieces.append(rows)


def tables(path: Path, place: int, pairs: dict[str, tuple[str, str]], ledger: Ledger) -> Iterator[pa.Table]:
    """Intervals between events after ``place`` bytes: name, start, stop, thread, core of the end. Raises BadInput."""
    events = _Events()
    with files.opened(path) as stream:
        stream.seek(place)
        rest, n_lines = b"", 0
        while block := stream.read(_BLOCK):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise BadInput(f"{path}: a line is longer than {_LONGEST_LINE} bytes", _HINT)
            n_lines += whole.count(b"\n") + bool(newline) - whole.count(b"\n\n")
            events.add(EVENT.findall(whole), path)
        n_lines += bool(rest.strip())
        events.add(EVENT.findall(rest), path)
    ledger.add("perf_script_line_without_event", max(0, n_lines - events.n))
    time, tid, cpu, name = np.concatenate([*events.pieces, np.zeros((4, 0), np.int64)], axis=1)
    words = [word.decode() for word in events.names]
    names, begins, ends = _roles(words, pairs)
    if not names:
        raise BadInput(
            f"{path}: no two events in it belong together ({', '.join(words[:8]) or 'none'})", _HINT
        )
    if not pairs:
        paired = np.isin(name, [*begins, *ends])
        ledger.add("perf_script_event_without_pair", int(np.count_nonzero(~paired)))
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        rows = np.flatnonzero((name == begin) | (name == end))
        first, last, n_alone, n_open = nested(tid[rows], time[rows], name[rows] == begin)
        ledger.add("interval_end_alone", n_alone)
        ledger.add("interval_not_ended", n_open)
        for at in range(0, len(first), _ROWS):
            low, high = rows[first[at : at + _ROWS]], rows[last[at : at + _ROWS]]
            word = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(low), np.int32)), [names[number]])
            columns = (time[low], time[high], tid[high], cpu[high])
            yield pa.Table.from_arrays(
                [word, *map(pa.array, columns)], names=["name", "start", "stop", "thread", "core"]
            )


def _roles(words: list[str], pairs: dict[str, tuple[str, str]]) -> tuple[list[str], list[int], list[int]]:
    """Names of intervals, and the numbers of the events that begin and end each."""
    number = {word: i for i, word in enumerate(words)} | {
        word.partition(":")[2]: i for i, word in enumerate(words) if not word.startswith("ptwrite:")
    }
    there = pairs or _by_name(words)
    for event in (event for pair in pairs.values() for event in pair if event not in number):
        raise BadInput(f"no event {event!r} of '# pair' in it", _HINT)
    return list(there), [number[b] for b, _ in there.values()], [number[e] for _, e in there.values()]


def _by_name(words: list[str]) -> dict[str, tuple[str, str]]:
    """Pairs according to the events' own names, each event in one. A name that occurs twice is prefixed with its group."""
    free, found = dict.fromkeys(words), []
    for begin, end in _ENDS:
        for word in words:
            stem = word.removesuffix(begin)
            if word.endswith(begin) and word in free and f"{stem}{end}" in free:
                del free[word], free[f"{stem}{end}"]
                found.append((stem, (word, f"{stem}{end}")))
    short, whole = Counter(_short(stem) for stem, _ in found), Counter(stem for stem, _ in found)
    return {
        _short(stem) if short[_short(stem)] == 1 else stem if whole[stem] == 1 else pair[0]: pair
        for stem, pair in found
    }


def _short(stem: str) -> str:
    """Without its group."""
    return stem.partition(":")[2] or stem


def nested(tid: I64, time: I64, begins: npt.NDArray[np.bool_]) -> tuple[I64, I64, int, int]:
    """Begins and ends of each thread paired like brackets: positions of both, number of unpaired ends, number of unpaired begins.

    >>> a = np.array
    >>> [x.tolist() for x in nested(a([1, 1, 1, 1, 1]), a([1, 2, 3, 4, 5]), a([False, True, True, False, False]))[:2]]
    [[1, 2], [4, 3]]
    """
    order = np.lexsort((np.arange(len(tid)), time, tid))
    step = np.where(begins[order], 1, -1)
    new = np.append(True, tid[order][1:] != tid[order][:-1]) if len(order) else np.zeros(0, bool)
    level, low = _levels(step, new)
    alone = (step < 0) & (level < low)
    n_alone = int(np.count_nonzero(alone))
    order, step = order[~alone], step[~alone]
    new = np.append(True, tid[order][1:] != tid[order][:-1]) if len(order) else np.zeros(0, bool)
    depth = _levels(step, new)[0] + (step < 0)  # the depth of its begin
    by = np.lexsort((np.arange(len(order)), depth, tid[order]))
    is_begin = step[by] > 0
    pair = np.flatnonzero(
        is_begin[:-1]
        & ~is_begin[1:]
        & (tid[order][by][1:] == tid[order][by][:-1])
        & (depth[by][1:] == depth[by][:-1])
    )
    first, last = order[by[pair]], order[by[pair + 1]]
    back = np.argsort(first, kind="stable")
    return first[back], last[back], n_alone, int(np.count_nonzero(is_begin)) - len(pair)


def _levels(step: I64, new: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """Nesting depth of each thread after each event, and its minimum before the event, 0 at the first event."""
    level = np.cumsum(step)
    group = np.cumsum(new) - 1
    before = (level - step)[new]
    level = level - before[group] if len(level) else level
    # The running minimum within each thread: threads are moved apart, so that one scan handles all.
    apart = (len(step) + 1) * 2 * group
    lowest = np.minimum.accumulate(level - apart) + apart if len(level) else level
    return level, np.minimum(np.where(new, 0, np.append(0, lowest[:-1]) if len(lowest) else lowest), 0)
