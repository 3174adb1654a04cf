# SPDX-License-Identifier: GPL-2.0-only
"""Steal time: how long the host of a virtual machine takes its cores away. Nothing runs then, and everything is late."""

from __future__ import annotations

import os
from pathlib import Path


def stolen_ms() -> int:
    """Steal time since boot, all cores together."""
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    return ticks * 1000 // os.sysconf("SC_CLK_TCK")
