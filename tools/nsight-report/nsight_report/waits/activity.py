# SPDX-License-Identifier: GPL-2.0-only
"""The tables that show what threads did; only requested parts are read."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from ..interval_joins import Int
from ..stage import Context
from ..tables.data_frames import to_pandas
from ..tables.intervals import IntervalTable

#: Columns that are read of each table.
STATES = ("tid", "pid", "comm", "start_ns", "end_ns", "state", "cpu")
CONTEXTS = ("cpu", "start_ns", "end_ns", "kind", "symbol", "tid", "comm")
WAITS = (
    "tid", "start_ns", "end_ns", "state", "place", "arg", "waker_tid", "waker_comm", "waker_cpu", "context", "symbol",
    "from_thread", "device", "operation", "nbytes",
)  # fmt: skip


@dataclass(frozen=True)
class Activity:
    """Tables ``thread_states``, ``contexts`` and ``waits`` of one recording; ``throttled``: processes whose CPU quota ran out."""

    thread_states: pa.Table | IntervalTable
    contexts: pa.Table | IntervalTable
    waits: pa.Table | IntervalTable
    throttled: tuple[int, ...] = ()

    @staticmethod
    def of(ctx: Context) -> Activity:
        """The results of the earlier stages."""
        from ..timeline.recording import host_beside

        states, contexts, waits = (ctx.stored(name) for name in ("thread_states", "contexts", "waits"))
        return Activity(states, contexts, waits, host_beside(states, ctx.manifest).throttled)

    def states_of(self, tid: Int, start: Int, end: Int) -> pd.DataFrame:
        """States of threads in intervals."""
        return to_pandas(_stored(self.thread_states, "tid").overlapping(tid, start, end, STATES))

    def contexts_of(self, cpu: Int, start: Int, end: Int) -> pd.DataFrame:
        """Contexts of cores, in intervals; a core below 0 means none."""
        return to_pandas(_stored(self.contexts, "cpu").overlapping(cpu, start, end, CONTEXTS))

    def waits_of(self, tid: Int, start: Int, end: Int) -> pd.DataFrame:
        """Waits of threads in intervals."""
        return to_pandas(_stored(self.waits, "tid").overlapping(tid, start, end, WAITS))

    def span(self) -> tuple[int, int]:
        """First and last time for which anything is known about threads; (0, 0) if nothing is."""
        return _stored(self.thread_states, "tid").span() or (0, 0)


def _stored(table: pa.Table | IntervalTable, group: str) -> IntervalTable:
    return table if isinstance(table, IntervalTable) else IntervalTable(table, group)
