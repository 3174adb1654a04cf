# SPDX-License-Identifier: GPL-2.0-only
"""Numbers that only one process on this machine can hold at a time, in any namespace.

Each is a byte of a file, locked by an open file description (fcntl(2), F_OFD_SETLK). The kernel releases it when
the process ends, however it ends. Children do not keep it, since the file descriptor closes when they exec.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

# struct flock: type, whence, start, length, pid, and the padding of a 64-bit machine.
_FLOCK = struct.Struct("hhqqi4x")


class LockFile:
    """An open lock file. Two objects for the same path exclude each other, also within one process."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o600)

    def take(self, number: int) -> bool:
        """Hold ``number`` from now on, unless another holder has it."""
        try:
            self._set(fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def give(self, number: int) -> None:
        """Release ``number``."""
        self._set(fcntl.F_UNLCK, number)

    def is_held(self, number: int) -> bool:
        """Whether another holder has ``number``."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Release everything."""
        os.close(self.fd)

    def _set(self, kind: int, number: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, number, 1, 0))
