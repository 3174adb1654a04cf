# SPDX-License-Identifier: GPL-2.0-only
"""How long the host of a virtual machine leaves its cores out: nothing runs then, and everything is late."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: From here on an absence can make a measurement of milliseconds another one: ms, and share of the cores' time.
MATTERS_MS, MATTERS = 20, 0.01


def stolen_ms() -> int:
    """How long the cores were left out since the machine began, all cores together."""
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    return ticks * 1000 // os.sysconf("SC_CLK_TCK")


class Absence:
    """The host's absence from now on."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), stolen_ms()

    def ms(self) -> int:
        """All cores together."""
        return stolen_ms() - self._before

    def matters(self) -> bool:
        """Whether what was measured meanwhile may be the host's doing."""
        cores_ms = (time.monotonic() - self._began) * 1000 * (os.cpu_count() or 1)
        return self.ms() >= max(MATTERS_MS, MATTERS * cores_ms)
