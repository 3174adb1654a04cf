# SPDX-License-Identifier: GPL-2.0-only
"""Processes, names and cores of threads, from a recording of cores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..interval_joins import Int, overlaps
from ..tables.data_frames import column, to_pandas
from ..tables.intervals import IntervalTable

_NAMES = ("tid", "pid", "comm")


class Threads(NamedTuple):
    """Threads of a recording in order of ``tid``, each with its process and its last name."""

    tid: Int
    pid: Int
    comm: npt.NDArray[np.object_]

    @staticmethod
    def of(states: IntervalTable) -> Threads:
        """From table ``thread_states``."""
        known: dict[int, tuple[int, str]] = {}
        for table in states.batches(_NAMES):
            frame = to_pandas(table).drop_duplicates(["tid", "pid", "comm"])
            rows = zip(
                column(frame["tid"]).tolist(),
                column(frame["pid"]).tolist(),
                frame["comm"].astype(str),
                strict=True,
            )
            known |= {
                tid: (pid, comm) for tid, pid, comm in rows if tid > 0
            }  # few: one for each thread and name
        tids = sorted(known)
        return Threads(
            np.array(tids, np.int64),
            np.array([known[tid][0] for tid in tids], np.int64),
            np.array([known[tid][1] for tid in tids], object),
        )

    @staticmethod
    def nothing() -> Threads:
        """For a recording that is not known yet."""
        none = np.zeros(0, np.int64)
        return Threads(none, none, np.zeros(0, object))

    def rows(self, tids: Int) -> Int:
        """Position of each thread, -1: not seen."""
        if not len(self.tid):
            return np.full(len(tids), -1)
        at = np.minimum(np.searchsorted(self.tid, tids), len(self.tid) - 1)
        return np.where(self.tid[at] == tids, at, -1)


def core_at(states: IntervalTable, tid: Int, at: Int) -> Int:
    """The core on which, or in whose queue, each thread was just before a time; -1: unknown."""
    found = np.full(len(tid), -1)
    asked = np.flatnonzero((tid > 0) & (at > 0))
    if not len(asked):
        return found
    frame = to_pandas(
        states.overlapping(tid[asked], at[asked] - 1, at[asked], ["tid", "start_ns", "end_ns", "cpu"])
    )
    query, item, _, _ = overlaps(
        tid[asked],
        at[asked] - 1,
        at[asked],
        column(frame["tid"]),
        column(frame["start_ns"]),
        column(frame["end_ns"]),
    )
    found[asked[query]] = column(frame["cpu"])[item]
    return found
