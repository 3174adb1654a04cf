# SPDX-License-Identifier: GPL-2.0-only
"""Intervals of cores around messages, slightly longer than their lifetimes: the parts of a recording that are read for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..interval_joins import Int, overlaps
from ..tables.data_frames import column

#: Margin before and after a message: the duration of an interrupt. A call in which a lifetime begins should have its own begin.
MARGIN_NS = 20_000


@dataclass(frozen=True)
class Window:
    """An interval of one core, in ns of monotonic time."""

    cpu: int
    begin_ns: int
    end_ns: int


def on_cores(messages: pd.DataFrame, thread_states: pd.DataFrame | None = None) -> Int:
    """The lifetimes of ``messages`` (rows of the table) on each core that handled them, with a margin.

    Rows of begin, end (ns, monotonic) and cpu, each once. With ``thread_states`` also every core on which the application's
    thread ran or was to run. A send may return after the driver has the message: the window extends to the return.
    """
    begin, tid = column(messages["first_ns"]), column(messages["tid"])
    end = np.maximum(column(messages["last_ns"]), column(messages["app_ns"]))
    every = np.arange(len(messages))
    cores = [column(messages[name]) for name in ("recv_cpu", "handoff_cpu", "app_cpu")]
    rows = [every] * len(cores)
    if thread_states is not None:
        states = thread_states[thread_states["tid"].isin(np.unique(tid))]
        since, until = column(states["start_ns"]), column(states["end_ns"])
        query, item, _, _ = overlaps(tid, begin, end, column(states["tid"]), since, until)
        cores.append(column(states["cpu"])[item])
        rows.append(query)
    message, cpu = np.concatenate(rows), np.concatenate(cores)
    intervals = np.column_stack([begin[message] - MARGIN_NS, end[message] + MARGIN_NS, cpu])
    return np.unique(intervals[cpu >= 0], axis=0)


def around(messages: pd.DataFrame) -> list[Window]:
    """The same as windows, in order of core and time; adjoining ones of a core are merged."""
    rows = on_cores(messages)
    merged: list[Window] = []
    for begin, end, cpu in rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))].tolist():
        if merged and merged[-1].cpu == cpu and begin <= merged[-1].end_ns:
            merged[-1] = Window(cpu, merged[-1].begin_ns, max(end, merged[-1].end_ns))
        else:
            merged.append(Window(cpu, begin, end))
    return merged
