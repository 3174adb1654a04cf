# SPDX-License-Identifier: GPL-2.0-only
"""The lifetime of one message as calls: on its receive core, then on its application core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import SIDES, Detours, sections

Ints = npt.NDArray[np.int64]

_TOGETHER = 200_000  # rows that are collected before they are passed on: a long wait can have a million


@dataclass(frozen=True)
class Interval:
    """An interval of one core that belongs to a message; ``side`` R before, A after the hand-off, T on the way out. In ns."""

    side: str
    cpu: int
    start_ns: int
    end_ns: int


def intervals_of(messages: pd.DataFrame, found: Detours | None = None) -> list[list[Interval]]:
    """The sections (timeline) whose core is known, for each of ``messages`` (rows of the table), in time order.

    ``found``: by row, what contexts show about the path between two cores.
    """
    parts = sections(messages, found)
    of: list[list[Interval]] = [[] for _ in range(len(messages))]
    columns = (parts.row, parts.side, parts.cpu, parts.start, parts.end)
    for row, side, cpu, start, end in zip(*(values.tolist() for values in columns), strict=True):
        if cpu < 0:
            continue
        last = of[row][-1] if of[row] else None
        if last and (last.side, last.cpu, last.end_ns) == (SIDES[side], cpu, start):
            # Places that follow each other on one core, as at the read of a request, are joined: no call appears twice.
            of[row][-1] = Interval(last.side, cpu, last.start_ns, end)
        else:
            of[row].append(Interval(SIDES[side], cpu, start, end))
    return of


def calls_of(parts: list[Interval], calls: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``calls`` within a message's ``intervals``, one interval after the other, each in order.

    Columns besides those of ``calls``: ``side`` (R or A), ``within_start_ns``, ``within_dur_ns`` and
    ``within_self_ns``: the part of the call that lies in the interval, and the share of it that no other call
    in it covers. The sum of ``within_self_ns`` is the time of the intervals in which the core is known.
    """
    return next(calls_of_each([parts], calls))


def calls_of_each(of: Iterable[list[Interval]], calls: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """``calls_of`` for each of some messages; the rows of several are taken together, which is much faster."""
    names = ("cpu", "start_ns", "dur_ns", "call_id", "parent_id")
    cpu, begin, length, number, parent = (calls[name].to_numpy(np.int64) for name in names)
    waiting: list[_Within] = []
    for parts in of:
        waiting.append(_within(parts, cpu, begin, begin + length, number, parent))
        if sum(len(w.rows) for w in waiting) > _TOGETHER:
            yield from _taken(waiting, calls)
            waiting = []
    yield from _taken(waiting, calls)


@dataclass(frozen=True)
class _Within:
    """Row numbers of a message's calls, with the side and times of each; see ``calls_of``."""

    rows: Ints
    side: npt.NDArray[np.object_]
    start_ns: Ints
    dur_ns: Ints
    self_ns: Ints


def _within(parts: list[Interval], cpu: Ints, begin: Ints, end: Ints, number: Ints, parent: Ints) -> _Within:
    nothing = np.zeros(0, np.int64)
    found: list[tuple[npt.NDArray[Any], ...]] = [(nothing, np.zeros(0, object), nothing, nothing, nothing)]
    for part in parts:
        hit = np.flatnonzero((cpu == part.cpu) & (begin < part.end_ns) & (end > part.start_ns))
        low = np.maximum(begin[hit], part.start_ns)
        dur = np.minimum(end[hit], part.end_ns) - low
        own = dur.copy()
        # Callers come before their callees: table order.
        place = pd.Index(number[hit]).get_indexer(pd.Index(parent[hit]))
        np.subtract.at(own, place[place >= 0], dur[place >= 0])
        found.append((hit, np.full(len(hit), part.side, object), low, dur, own))
    return _Within(*(np.concatenate(values) for values in zip(*found, strict=True)))


def _taken(waiting: list[_Within], calls: pd.DataFrame) -> Iterator[pd.DataFrame]:
    if not waiting:
        return
    rows, side, start, dur, own = (
        np.concatenate([getattr(w, name) for w in waiting])
        for name in ("rows", "side", "start_ns", "dur_ns", "self_ns")
    )
    frame = calls.iloc[rows].reset_index(drop=True)
    frame.insert(0, "side", pd.Series(side, dtype=str))
    frame = frame.assign(within_start_ns=start, within_dur_ns=dur, within_self_ns=own)
    at = 0
    for w in waiting:
        yield frame.iloc[at : at + len(w.rows)].reset_index(drop=True)
        at += len(w.rows)
