# SPDX-License-Identifier: GPL-2.0-only
"""What is shown: one line for each stage and group, of one interval or of the whole time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .histogram import EMPTY, Histogram, total
from .names import ENDED, Names
from .snapshots import Header, Snapshot

#: Reasons why a packet has no receive timestamp from a known clock, and the text for them.
NO_STAMP = "no_stamp_"


@dataclass(frozen=True)
class Row:
    """``count`` latencies of a ``stage`` in a ``group`` ("" where nothing is grouped)."""

    stage: str
    group: str
    histogram: Histogram


@dataclass(frozen=True)
class View:
    """``rows`` in the order of the stages; within a stage, groups by falling count. ``counts``: for the same
    time as the rows."""

    realtime_ns: int
    duration_ns: int
    rows: tuple[Row, ...]
    counts: dict[str, int]
    missed: int
    missed_by: dict[str, int]


class Views:
    """The part of each snapshot that is new since the previous one, or with ``totals`` all of it."""

    def __init__(self, header: Header, totals: bool = False) -> None:
        self._order = {stage.name: i for i, stage in enumerate(header.stages)}
        self._names = Names(header.group_by)
        self._totals = totals
        self._before: Snapshot | None = None

    def give(self, names: dict[int, str]) -> None:
        """Names of groups, found by a process with more privileges."""
        self._names.give(names)

    def of(self, now: Snapshot, began_ns: int) -> View:
        """``began_ns``: when the first interval began, on the monotonic clock."""
        before = None if self._totals else self._before
        self._before = now
        return View(
            now.realtime_ns,
            now.monotonic_ns - (before.monotonic_ns if before else began_ns),
            tuple(self._rows(now, before)),
            {k: n - (before.counts.get(k, 0) if before else 0) for k, n in now.counts.items()},
            now.missed - (before.missed if before else 0),
            {p: n - (before.missed_by.get(p, 0) if before else 0) for p, n in now.missed_by.items()},
        )

    def _rows(self, now: Snapshot, before: Snapshot | None) -> Iterator[Row]:
        names = self._names.of(now)
        found = []
        for (stage, group), histogram in now.histograms.items():
            new = histogram.since(before.histograms.get((stage, group), EMPTY) if before else EMPTY)
            if new.count:
                found.append(Row(stage, names.get(group, str(group)), new))
        for stage, histogram in now.ended.items():
            new = histogram.since(_already(stage, now, before) if before else EMPTY)
            if new.count:
                found.append(Row(stage, ENDED, new))
        yield from sorted(found, key=lambda r: (self._order.get(r.stage, 99), -r.histogram.count, r.group))


def _already(stage: str, now: Snapshot, before: Snapshot) -> Histogram:
    """The part of ``now.ended`` that ``before`` has, too: there, some of these groups had not ended yet."""
    gone = (
        h for (s, group), h in before.histograms.items() if s == stage and (s, group) not in now.histograms
    )
    return total((before.ended.get(stage, EMPTY), *gone))
