# SPDX-License-Identifier: GPL-2.0-only
"""Which threads had requests (table ``request_work``), in a Perfetto trace.

A request's slice contains one slice per thread that had it; the tracks of these threads have an instant where each got it,
joined by a flow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..tables.data_frames import each
from ..waits.phrases import certain, handed
from .perfetto_wire import BEGIN, END, INSTANT, annotate, event

#: Flows of requests start here; those of their timestamps are numbers from 1 on.
_FLOW = 1 << 40


def hands(work: pd.DataFrame, track_of: dict[int, int], thread_track: dict[int, int]) -> Iterator[Any]:
    """Events of ``work``; ``track_of``: the track of each request by number, ``thread_track``: the track of each thread that has one."""
    for _, of in work.groupby("request_id", sort=False):
        number, rows = int(of["request_id"].iloc[0]), list(each(of))
        track = track_of[number]
        for row in rows:
            name = f"{row.comm}[{row.tid}]: {handed(str(row.how))}"
            packet = event(BEGIN, track, int(row.start_ns), name, "hands")
            yield annotate(packet, tid=int(row.tid), how=str(row.how), sure=str(row.sure))
            yield event(END, track, int(row.end_ns))
        drawn = [row for row in rows if int(row.tid) in thread_track]
        for i, row in enumerate(drawn):
            name = f"request {number}: {handed(str(row.how))}"
            told = event(INSTANT, thread_track[int(row.tid)], int(row.start_ns), name, "hand-over")
            flows = told.track_event.flow_ids if i < len(drawn) - 1 else told.track_event.terminating_flow_ids
            flows.append(_FLOW + number)
            yield annotate(told, request_id=number, confidence=certain(str(row.sure)) or "measured")
