# SPDX-License-Identifier: GPL-2.0-only
"""Numbers that one process at a time holds on this machine, whatever namespace it is in.

Each is a byte of a file, locked by an open file description (fcntl(2), F_OFD_SETLK). The kernel gives it back when
the process ends, however it ends. Children do not keep it, since the descriptor closes when they exec.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

# struct flock: type, whence, start, length, pid, and the padding of a 64-bit machine.
_FLOCK = struct.Struct("hhqqi4x")


class LockFile:
    """An open file of locks. Two of the same path exclude each other, also within one process."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o600)

    def take(self, number: int) -> bool:
        """Hold ``number`` from now on, unless somebody else does."""
        try:
            self._set(fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def give(self, number: int) -> None:
        """Hold ``number`` no longer."""
        self._set(fcntl.F_UNLCK, number)

    def is_held(self, number: int) -> bool:
        """Whether somebody else holds ``number``."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Give everything back."""
        os.close(self.fd)

    def _set(self, kind: int, number: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, number, 1, 0))
