# SPDX-License-Identifier: GPL-2.0-only
"""What messages met and called, some messages at a time: memory grows with what one part of them called."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ..calls.call_tree import COLUMNS, CallTree
from ..interval_joins import Int
from ..timeline import exposure
from ..timeline.activity import Activity
from ..timeline.frequency import CoreFrequencies
from ..timeline.labelled import Exposure, LabelledIntervals
from . import functions
from .functions import Measured
from .paths import Calls, Nodes, Paths

#: Parts that are worked on at a time.
PARTS = 2


def measure(
    activity: Activity, wanted: list[Int], with_functions: bool
) -> list[tuple[Exposure, Measured | None]]:
    """For each of the sets of rows of the activity's messages: what they met, and what they called."""
    met: list[list[Exposure]] = [[] for _ in wanted]
    called: list[list[tuple[Paths, Nodes, Int]]] = [[] for _ in wanted]
    # What the messages of one part called is found while the contexts of the next are looked at.
    with ThreadPoolExecutor(PARTS) as pool:
        ahead: deque[Future[list[tuple[Paths, Nodes, Int]]]] = deque()
        for parts, machine in activity.parts(wanted):
            found = [exposure.measure(activity.messages, p, machine) for p in parts]
            for of, (sums, _) in zip(met, found, strict=True):
                of.append(sums)
            if with_functions:
                ahead.append(
                    pool.submit(_called, activity, [within for _, within in found], machine.frequencies)
                )
            if len(ahead) > PARTS:
                _add(called, ahead.popleft().result())
        while ahead:
            _add(called, ahead.popleft().result())
    return [
        (Exposure.join(of), Measured.join(into) if with_functions else None)
        for of, into in zip(met, called, strict=True)
    ]


def _called(
    activity: Activity, within: list[LabelledIntervals], frequencies: CoreFrequencies
) -> list[tuple[Paths, Nodes, Int]]:
    """What was called in each of some sets of intervals: paths, what messages spent in them, and their labels."""
    every = LabelledIntervals.join(within)
    rows = activity.calls_while(every.cpu, every.start, every.end, COLUMNS)
    calls, found = Calls(CallTree.build(rows, activity.softirqs)), []
    for w in within:
        labels = functions.label(w.side, w.kind, w.subject)
        nodes = calls.measure(w.row, labels, w.cpu, w.start, w.end, frequencies)
        found.append((calls.paths, nodes, np.unique(labels)))
    return found


def _add(called: list[list[tuple[Paths, Nodes, Int]]], part: list[tuple[Paths, Nodes, Int]]) -> None:
    for into, of in zip(called, part, strict=True):
        into.append(of)
