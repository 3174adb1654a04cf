# SPDX-License-Identifier: GPL-2.0-only
"""The packet capture, made only on request: it stores the users' data."""

from __future__ import annotations

import shutil
from pathlib import Path

# Whole packets: if a message begins in the middle of a packet, the packet's first bytes do not contain it.
DEFAULT_SNAPLEN = 262144
_BUFFER_KIB = 16384
# The kernel hands packets to tcpdump in blocks that are full or this old (libpcap's timeout, 1 s in tcpdump).
# A block that was not handed over when tcpdump ends is lost.
BLOCK_AGE_S = 1.2


def argv(output: Path, snaplen: int, iface: str | None, port: int) -> list[str]:
    """tcpdump with nanosecond timestamps (CLOCK_REALTIME), as root: it writes into root's directory."""
    command = ["tcpdump", "-n", "-i", iface or "any", "-s", str(snaplen), "-B", str(_BUFFER_KIB)]
    command += ["--time-stamp-precision=nano", "-Z", "root", "-w", str(output)]
    if port:
        command += ["port", str(port)]
    return command


def find(path: str | None = None) -> str | None:
    """Where tcpdump is."""
    return shutil.which("tcpdump", path=path)
