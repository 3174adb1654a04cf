# SPDX-License-Identifier: GPL-2.0-only
"""Labels of intervals of lifetimes (exposure.py), and how much of each label every message has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int, overlaps
from ..tables.data_frames import column
from .machine import Machine
from .pieces import uncovered

KINDS = (
    "own", "hol", "interference", "sibling", "thread", "softirq", "hardirq", "exception", "idle", "host", "wait", "untraced",
    "frequency",
)  # fmt: skip
(
    OWN,
    HOL,
    INTERFERENCE,
    SIBLING,
    THREAD,
    SOFTIRQ,
    HARDIRQ,
    EXCEPTION,
    IDLE,
    HOST,
    WAIT,
    UNTRACED,
    FREQUENCY,
) = range(len(KINDS))

#: Kinds of intervals in which a thread or core worked on the message itself, or did the usual: the functions there count.
WITHIN = (OWN, SOFTIRQ, HARDIRQ, EXCEPTION)
#: Kinds of work that take longer at a lower frequency. Other programs are left out: they may just use up their time.
WORK = (OWN, HOL, INTERFERENCE, SOFTIRQ, HARDIRQ, EXCEPTION)
LOWER_FREQUENCY = "at a lower frequency"


@dataclass(frozen=True)
class LabelledIntervals:
    """Labelled intervals of lifetimes; ``row``: position of the message, ``other``: the message it is about."""

    row: Int
    side: Int
    kind: Int
    subject: Int
    start: Int
    end: Int
    cpu: Int
    other: Int

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """All rows of ``parts``."""
        return cls(*(np.concatenate([getattr(p, f) for p in parts]) for f in cls.__dataclass_fields__))

    def take(self, chosen: npt.NDArray[Any]) -> Self:
        """The chosen rows."""
        return replace(self, **{f: getattr(self, f)[chosen] for f in self.__dataclass_fields__})


@dataclass(frozen=True)
class Exposure(LabelledIntervals):
    """One row per message, side and label: ``ns`` in all, and its longest interval."""

    ns: Int


def total(rows: LabelledIntervals) -> Exposure:
    """Add up the intervals of each message, side and label; keep the longest as evidence.

    Adjoining intervals about the same message count as one there: system calls and interrupts cut a thread's time on a core.
    """
    order = np.lexsort((rows.start, rows.other, rows.cpu, rows.subject, rows.kind, rows.side, rows.row))
    columns = (rows.row, rows.side, rows.kind, rows.subject, rows.cpu, rows.other, rows.start, rows.end)
    row, side, kind, subject, cpu, other, start, end = (of[order] for of in columns)
    label = np.stack([row, side, kind, subject])
    new = (np.diff(np.stack([*label, cpu, other])) != 0).any(axis=0) | (start[1:] != end[:-1])
    first = _firsts(new, len(order))
    ns = np.add.reduceat(end - start, first) if len(first) else np.zeros(0, np.int64)
    run = np.lexsort((-ns, *label[::-1, first]))
    longest = _firsts((np.diff(label[:, first[run]]) != 0).any(axis=0), len(run))
    total = np.add.reduceat(ns[run], longest) if len(longest) else np.zeros(0, np.int64)
    at = first[run[longest]]
    return Exposure(
        row[at],
        side[at],
        kind[at],
        subject[at],
        start[at],
        start[at] + ns[run[longest]],
        cpu[at],
        other[at],
        total,
    )


def with_memory_work(intervals: LabelledIntervals, m: Machine) -> LabelledIntervals:
    """``intervals`` in which page faults, reclaim and the like in the message's own thread have separate labels."""
    own = np.flatnonzero(intervals.kind == OWN) if len(m.memory.cpu) else np.zeros(0, np.int64)
    query, at, start, end = overlaps(
        intervals.cpu[own], intervals.start[own], intervals.end[own],
        m.memory.cpu, m.memory.start, m.memory.end,
    )  # fmt: skip
    if not len(query):
        return intervals
    rest, low, high = uncovered(query, start, end, intervals.start[own], intervals.end[own])
    others = intervals.take(intervals.kind != OWN)
    left = replace(intervals.take(own[rest]), start=low, end=high)
    work = replace(
        intervals.take(own[query]),
        start=start,
        end=end,
        kind=np.full(len(query), EXCEPTION),
        subject=m.memory.work[at],
        other=np.full(len(query), -1),
    )
    return LabelledIntervals.join([others, left, work])


def at_usual_frequency(sums: Exposure, intervals: LabelledIntervals, m: Machine) -> Exposure:
    """``sums`` in which work takes the time it would take at the usual frequency; the rest gets a separate label."""
    at = np.flatnonzero(np.isin(intervals.kind, WORK))
    longer = m.frequencies.longer(intervals.cpu[at], intervals.start[at], intervals.end[at])
    at, longer = at[longer > 0], longer[longer > 0]
    if not len(at):
        return sums
    slowed = {f: getattr(intervals, f)[at] for f in LabelledIntervals.__dataclass_fields__}
    label = ["row", "side", "kind", "subject"]
    frame = pd.DataFrame({**slowed, "ns": longer})
    of = frame.groupby(label)["ns"].sum()
    less = of.reindex(pd.MultiIndex.from_arrays([getattr(sums, f) for f in label])).fillna(0)
    left = replace(sums, ns=sums.ns - less.to_numpy(np.int64))
    # The interval that lost most represents the others.
    frame = frame.assign(kind=FREQUENCY, subject=m.names.code(LOWER_FREQUENCY), other=-1)
    frame = frame.sort_values([*label, "ns"], kind="stable")
    groups = frame.groupby(label)["ns"]
    rows = frame.assign(ns=groups.transform("sum")).drop_duplicates(label, keep="last")
    return Exposure.join([left, Exposure(**{f: column(rows[f]) for f in Exposure.__dataclass_fields__})])


def _firsts(new: npt.NDArray[np.bool_], n: int) -> Int:
    """Positions at which a group of ``n`` sorted rows begins; ``new``: whether each row after the first does."""
    return np.flatnonzero(np.append(True, new)) if n else np.zeros(0, np.int64)
