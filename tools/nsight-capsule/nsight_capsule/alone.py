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
#: After a kill, its nsight-stamp still waits for packets on their way before it ends.
_KILLED_S = 1.0


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
    deadline = time.monotonic() + _KILLED_S
    while not _locked(fd):
        if time.monotonic() < deadline:
            time.sleep(0.02)
            continue
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise Missing(
            f"another nsight-capsule runs on this machine{f', process {holder}' if holder.isdecimal() else ''}",
            "wait for its end, or give it one more --netns; --match runs beside it",
        )
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return FileIO(fd, "r+")
