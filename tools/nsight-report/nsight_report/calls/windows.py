# SPDX-License-Identifier: GPL-2.0-only
"""Calls around some messages, read from the stored table without the rest of it.

A capture may hold tens of millions of calls; of a lifetime there are hundreds. Rows stand in order of core and
begin, and callers before what they call, so the statistics of the file's row groups tell where a window lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..anomalies.windows import MARGIN_NS

_KEYS = ["call_id", "parent_id", "cpu", "start_ns", "dur_ns"]
_KEPT_GROUPS = 4  # in memory, of the columns above

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """A stretch of one core, in ns of monotonic time."""

    cpu: int
    begin_ns: int
    end_ns: int


def around(messages: pd.DataFrame) -> list[Window]:
    """The lifetimes of ``messages`` (rows of the table) on each core that had to do with them, and a little more.

    Windows of a core that touch are one; in order of core and time.
    """
    begin, end = (messages[name].to_numpy(np.int64) for name in ("first_ns", "last_ns"))
    spans = np.column_stack([begin - MARGIN_NS, end + MARGIN_NS])
    # A send may return after the driver has the message: its stretch is longer than the lifetime.
    returned = messages["app_ns"].fillna(messages["last_ns"]).to_numpy(np.int64)
    spans[:, 1] = np.maximum(spans[:, 1], returned + MARGIN_NS)
    found: list[npt.NDArray[np.int64]] = []
    for column in ("recv_cpu", "handoff_cpu", "app_cpu"):
        known = messages[column].notna().to_numpy(bool)
        cores = messages.loc[known, column].to_numpy(np.int64)
        found.append(np.column_stack([cores, spans[known]]))
    rows = np.unique(np.concatenate(found), axis=0)
    merged: list[Window] = []
    for cpu, begin, end in rows.tolist():
        if merged and merged[-1].cpu == cpu and begin <= merged[-1].end_ns:
            merged[-1] = Window(cpu, merged[-1].begin_ns, max(end, merged[-1].end_ns))
        else:
            merged.append(Window(cpu, begin, end))
    return merged
