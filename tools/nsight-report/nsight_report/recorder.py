# SPDX-License-Identifier: GPL-2.0-only
"""Which threads belong to the recording itself: their time is the recording's cost, not interference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from .manifest import Manifest
from .names import thread_name

#: Added to names of such threads in results. The result is longer than any name that a thread can choose (15 bytes).
SUFFIX = " (this recording)"
#: Recorder of an imported perf.data: its process was not noted.
_OF_AN_IMPORT = frozenset({"perf", "perf-exec"})
_MOST = 1000


@dataclass(frozen=True)
class Recorder:
    """Processes of the recorder and of what it started; for an import, names of threads."""

    pids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, manifest: Manifest) -> Recorder:
        """From the process numbers in ``manifest``."""
        if manifest.mapping("imported"):
            return cls(names=_OF_AN_IMPORT)
        tools = manifest.mapping("tools").values()
        found = [manifest.raw.get("recorder_pid"), *(t.get("pid") for t in tools if isinstance(t, dict))]
        return cls(frozenset(p for p in found[:_MOST] if isinstance(p, int) and 0 < p < 1 << 31))

    def among(self, pid: npt.NDArray[np.int64], comm: pd.Series) -> npt.NDArray[np.bool_]:
        """Mask of rows (given by process and thread name) that belong to its threads."""
        found = np.isin(pid, list(self.pids))
        return found | comm.isin(self.names).to_numpy(bool) if self.names else found


NOBODY = Recorder()


def named(comm: str) -> str:
    """The name of a thread of the recording in results.

    >>> named("perf")
    'perf (this recording)'
    """
    return thread_name(comm) + SUFFIX
