# SPDX-License-Identifier: GPL-2.0-only
"""What messages met and called, some messages at a time: memory grows with what one part of them called."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pandas as pd

from ..calls.call_tree import COLUMNS, CallTree
from ..interval_joins import Int, overlaps
from ..tables.data_frames import column, to_pandas, words
from ..timeline import exposure
from ..timeline.activity import Activity
from ..timeline.frequency import CoreFrequencies
from ..timeline.labelled import EXCEPTION, OWN, Exposure, LabelledIntervals
from . import functions
from .functions import Measured
from .paths import Calls, Nodes, Paths

#: Parts that are processed at a time.
PARTS = 2


def measure(
    activity: Activity, wanted: list[Int], with_functions: bool
) -> list[tuple[Exposure, Measured | None, pd.DataFrame]]:
    """For each of the sets of rows of the activity's messages: what they met and called, and ``counted`` for their own work."""
    met: list[list[Exposure]] = [[] for _ in wanted]
    called: list[list[tuple[Paths, Nodes, Int]]] = [[] for _ in wanted]
    counts: list[list[pd.DataFrame]] = [[] for _ in wanted]
    # The calls of one part are searched while the contexts of the next part are processed.
    with ThreadPoolExecutor(PARTS) as pool:
        ahead: deque[Future[list[tuple[Paths, Nodes, Int]]]] = deque()
        for parts, machine in activity.parts(wanted):
            found = [exposure.measure(activity.messages, p, machine) for p in parts]
            for of, beside, (sums, within) in zip(met, counts, found, strict=True):
                of.append(sums)
                beside.append(counted(activity, within))
            if with_functions:
                ahead.append(
                    pool.submit(_called, activity, [within for _, within in found], machine.frequencies)
                )
            if len(ahead) > PARTS:
                _add(called, ahead.popleft().result())
        while ahead:
            _add(called, ahead.popleft().result())
    return [
        (
            Exposure.join(of),
            Measured.join(into) if with_functions else None,
            pd.concat(beside, ignore_index=True),
        )
        for of, into, beside in zip(met, called, counts, strict=True)
    ]


def counted(activity: Activity, within: LabelledIntervals) -> pd.DataFrame:
    """``row``, ``counter``, ``count``: counter values while each message's own thread worked on it, including page faults and the like.

    The count of a core between two readings is spread evenly over the time between them.
    """
    own = within.take(np.isin(within.kind, (OWN, EXCEPTION)))
    spans = to_pandas(activity.counters.overlapping(own.cpu, own.start, own.end))
    name, parts = words(spans["counter"]), []
    for counter in np.unique(name):
        of = spans[name == counter]
        start, end = column(of["start_ns"]), column(of["end_ns"])
        query, item, low, high = overlaps(own.cpu, own.start, own.end, column(of["cpu"]), start, end)
        share = (high - low) / (end - start)[item] * column(of["count"])[item]
        parts.append(pd.DataFrame({"row": own.row[query], "counter": counter, "count": share}))
    if not parts:
        return pd.DataFrame(
            {"row": np.zeros(0, np.int64), "counter": np.zeros(0, object), "count": np.zeros(0)}
        )
    return pd.concat(parts).groupby(["row", "counter"]).sum().reset_index()


def _called(
    activity: Activity, within: list[LabelledIntervals], frequencies: CoreFrequencies
) -> list[tuple[Paths, Nodes, Int]]:
    """The calls in each of some sets of intervals: paths, the time of messages in them, and their labels."""
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
