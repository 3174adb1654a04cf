# SPDX-License-Identifier: GPL-2.0-only
"""Only one nsight-capsule at a time may mark connections on this machine.

Runs that change no packet (``--match``) mark none, and can run at the same time.
"""

from __future__ import annotations

import fcntl
import os
import time
from io import FileIO
from pathlib import Path

from nsight_record.errors import Missing

LOCK = Path("/run/nsight-capsule.lock")
#: At its end it unlocks in this time.
_ENDING_S = 1.0
#: After a kill, its nsight-stamp still waits for packets on their way, and for the kernel to detach its programs.
_KILLED_S = 60.0


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def taken(path: Path = LOCK) -> FileIO:
    """The machine's lock. It is held until it is closed here and in every process that inherited it. Raises
    Missing, OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    began = time.monotonic()
    while not _locked(fd):
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        killed = holder.isdecimal() and not Path("/proc", holder).exists()
        if time.monotonic() - began < (_KILLED_S if killed else _ENDING_S):
            time.sleep(0.02)
            continue
        os.close(fd)
        raise Missing(
            f"another nsight-capsule runs on this machine{f', process {holder}' if holder.isdecimal() else ''}",
            "wait for its end, or give it one more --netns; --match runs beside it",
        )
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return FileIO(fd, "r+")
