# SPDX-License-Identifier: GPL-2.0-only
"""Which threads were the recording's own: what they took is its cost, and no neighbour's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from .manifest import Manifest
from .names import thread_name

#: Of their names in results. With it a name is longer than a thread can choose its own (15 bytes).
SUFFIX = " (this recording)"
#: Who wrote a perf.data that was imported: nobody noted its process.
_OF_AN_IMPORT = frozenset({"perf", "perf-exec"})
_MOST = 1000


@dataclass(frozen=True)
class Recorder:
    """Processes of the recorder and what it started; of an import, names of threads."""

    pids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, manifest: Manifest) -> Recorder:
        """By the process numbers in ``manifest``."""
        if manifest.mapping("imported"):
            return cls(names=_OF_AN_IMPORT)
        tools = manifest.mapping("tools").values()
        found = [manifest.raw.get("recorder_pid"), *(t.get("pid") for t in tools if isinstance(t, dict))]
        return cls(frozenset(p for p in found[:_MOST] if isinstance(p, int) and 0 < p < 1 << 31))

    def among(self, pid: npt.NDArray[np.int64], comm: pd.Series) -> npt.NDArray[np.bool_]:
        """Which rows, of processes and names of threads, are of its threads."""
        found = np.isin(pid, list(self.pids))
        return found | comm.isin(self.names).to_numpy(bool) if self.names else found


NOBODY = Recorder()


def named(comm: str) -> str:
    """What results call a thread of the recording.

    >>> named("perf")
    'perf (this recording)'
    """
    return thread_name(comm) + SUFFIX
