# SPDX-License-Identifier: GPL-2.0-only
"""Folded stacks: one line per call path, ``frame;frame;frame count``, for flamegraph.pl and difffolded.pl.

Counts are ns per message, on average, so that slices of different sizes compare. With two slices a line has two
counts, the baseline's first: flamegraph.pl colours increases red.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..names import printable
from ..timeline.calls_of_message import Interval
from .call_events import names
from .output_file import opened
from .selection import messages_of

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_BATCH = 200  # messages whose calls are in memory at a time


def export(capture: CaptureTables, spec: str | None, path: Path) -> dict[str, int]:
    """Write the stacks of ``spec`` (see ``chosen.messages_of``), or of baseline and slow, to ``path``."""
    sides = [messages_of(capture, s) for s in ([spec] if spec else ["baseline", "slow"])]
    stacks = [of_messages(capture, side) for side in sides]
    lines = []
    for stack in sorted({s for found in stacks for s in found}):
        counts = [round(found[stack] / len(side)) for found, side in zip(stacks, sides)]
        if any(counts):
            lines.append(f"{stack} {' '.join(map(str, counts))}\n")
    with opened(path) as file:
        file.write("".join(lines).encode())
    who = ["messages"] if spec else ["baseline_messages", "slow_messages"]
    return {"stacks": len(lines), **{name: len(side) for name, side in zip(who, sides)}}


def of_messages(capture: CaptureTables, messages: pd.DataFrame) -> Counter[str]:
    """Call path to ns within the messages' intervals, summed over them; time without any record is a frame too."""
    found = Counter[str]()
    ordered = messages.sort_values("first_ns")
    for at in range(0, len(ordered), _BATCH):
        batch = ordered.iloc[at : at + _BATCH]
        calls = _Stacks(capture.calls_around(batch))
        for parts in capture.intervals(batch):
            for part in parts:
                calls.add(part, found)
    return found


class _Stacks:
    """Calls in table order, and the path of each as text."""

    def __init__(self, calls: pd.DataFrame) -> None:
        self._begin, self._dur, cpu, ids, parents = (
            calls[c].to_numpy(np.int64) for c in ("start_ns", "dur_ns", "cpu", "call_id", "parent_id")
        )
        self._end = self._begin + self._dur
        self._caller = pd.Index(ids).get_indexer(pd.Index(parents))
        which, shown = names(calls)
        frames = [_frame(*s) for s in shown]
        numbers: dict[tuple[int, int], int] = {}
        self._texts: list[str] = []
        self._path = np.empty(len(calls), np.int64)
        for i, (caller, name) in enumerate(zip(self._caller.tolist(), which.tolist())):
            above = int(self._path[caller]) if caller >= 0 else -1
            key = (above, name)
            if key not in numbers:
                numbers[key] = len(self._texts)
                self._texts.append(f"{self._texts[above]};{frames[name]}" if above >= 0 else frames[name])
            self._path[i] = numbers[key]
        self._cores = {int(c): np.searchsorted(cpu, [c, c + 1]) for c in np.unique(cpu)}

    def add(self, part: Interval, found: Counter[str]) -> None:
        """Add the self times of the calls of one interval."""
        low, high = self._cores.get(part.cpu, (0, 0))
        hit = low + np.flatnonzero(
            (self._begin[low:high] < part.end_ns) & (self._end[low:high] > part.start_ns)
        )
        inside = np.minimum(self._end[hit], part.end_ns) - np.maximum(self._begin[hit], part.start_ns)
        own = inside.copy()
        place = np.searchsorted(hit, self._caller[hit])
        nested = self._caller[hit] >= 0
        np.subtract.at(own, place[nested], inside[nested])
        paths, where = np.unique(self._path[hit], return_inverse=True)
        sums = np.zeros(len(paths), np.int64)
        np.add.at(sums, where.reshape(-1), own)
        for path, ns in zip(paths.tolist(), sums.tolist()):
            if ns > 0:
                found[f"({part.side});{self._texts[path]}"] += ns
        unknown = part.end_ns - part.start_ns - int(own.sum())
        if unknown > 0:
            found[f"({part.side});(unknown)"] += unknown


def _frame(kind: str, name: str) -> str:
    """A name without the characters that separate frames and counts."""
    prefix = "" if kind in ("function", "gap", "stall") or kind == name else f"{kind}: "
    return printable(prefix + name, 200).replace(";", ",").replace(" ", "_")
