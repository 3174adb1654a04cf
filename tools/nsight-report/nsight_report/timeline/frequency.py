# SPDX-License-Identifier: GPL-2.0-only
"""How much longer work took because its core ran at a lower frequency than usual.

What takes t ns at f would take t f/F at the usual frequency F; the rest, t (1 - f/F), is due to the frequency. That is
an upper bound: time in which the core waits for memory does not depend on its clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ..interval_joins import Int, latest
from ..tables.data_frames import column


def _none() -> Int:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class CoreFrequencies:
    """Frequencies of cores: rows of table ``frequencies``, in its order. ``usual_khz``: the frequency of ordinary work; 0 unknown.

    ``lost``: ns that work on the same core had lost by the begin of each row.
    """

    cpu: Int = field(default_factory=_none)
    start: Int = field(default_factory=_none)
    khz: Int = field(default_factory=_none)
    usual_khz: int = 0
    lost: Int = field(default_factory=_none)

    @staticmethod
    def of(table: pd.DataFrame) -> CoreFrequencies:
        """Rows of ``frequencies``."""
        return CoreFrequencies(column(table["cpu"]), column(table["start_ns"]), column(table["khz"]))

    def usual(self, messages: pd.DataFrame) -> int:
        """kHz of the application core at the end of the median message; 0: not known for any message."""
        khz = self.at(column(messages["app_cpu"]), column(messages["last_ns"]))
        return int(np.median(khz[khz > 0])) if (khz > 0).any() else 0

    def against(self, usual_khz: int) -> CoreFrequencies:
        """The same, with the usual frequency set."""
        last = np.append(self.cpu[1:] != self.cpu[:-1], True)[: len(self.cpu)]
        length = np.where(last, 0, np.append(np.diff(self.start), 0)[: len(self.cpu)])
        found = replace(self, usual_khz=usual_khz)
        lost = np.cumsum(found._slowed(np.arange(len(self.cpu)), length))
        return replace(found, lost=np.append(0, lost)[: len(self.cpu)])

    def at(self, cpu: Int, time: Int) -> Int:
        """kHz of cores at some times; 0 unknown."""
        return np.append(self.khz, 0)[latest(self.cpu, self.start, cpu, time)]

    def longer(self, cpu: Int, start: Int, end: Int) -> Int:
        """By how many ns work in intervals of cores took longer than at the usual frequency.

        The parts of an interval add up to the whole: for a call and its callees.
        """
        if not len(self.lost) or not self.usual_khz:
            return np.zeros(len(cpu), np.int64)
        return self._until(cpu, end) - self._until(cpu, start)

    def _until(self, cpu: Int, time: Int) -> Int:
        """ns that each core had lost by some times; 0 before its first row."""
        row = latest(self.cpu, self.start, cpu, time)
        first = np.minimum(np.searchsorted(self.cpu, cpu), len(self.cpu) - 1)
        since = self.lost[row] + self._slowed(row, time - self.start[row])
        return np.where(row >= 0, since, self.lost[first])

    def _slowed(self, row: Int, ns: Int) -> Int:
        share = 1 - self.khz[row] / max(self.usual_khz, 1)
        return np.floor(np.maximum(share, 0) * ns).astype(np.int64)
