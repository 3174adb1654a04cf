# SPDX-License-Identifier: GPL-2.0-only
"""/run/nsight: what recorders with --fix have changed on this machine, and which of them need it.

Recorders that run at the same time share a change, and the last one undoes it. Changes that a killed one left
behind are known to the next. One file, replaced as a whole and only under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import RecordError

DIRECTORY = "run/nsight"
_CHANGES, _NEW, _LOCK = "changes.json", "changes.json.new", "lock"
_VERSION = 1


def start_time(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None if it has ended.

    Together with it a process id is unique: the number alone is reused.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the program's name may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Holder:
    """A recorder that needs a change."""

    pid: int
    start_time: int
    capture: str

    def lives(self) -> bool:
        """Whether the recorder still runs."""
        return start_time(self.pid) == self.start_time

    def __str__(self) -> str:
        return f"nsight-record {self.pid} ({self.capture})"


@dataclass
class Change:
    """One setting.

    ``kind`` and ``target`` name it, ``namespace`` is the inode number of the mount or network namespace it
    belongs to (0: the machine's). ``before`` is the previous value, ``value`` the requested one, ``after``
    the resulting one; None until the change is made.
    """

    kind: str
    target: str
    namespace: int
    before: Any
    value: Any
    after: Any = None
    holders: list[Holder] = field(default_factory=list)

    @property
    def what(self) -> str:
        """Such as ``mount /sys/kernel/tracing``."""
        return f"{self.kind} {'rx_filter ' if self.kind == 'hwtstamp' else ''}{self.target}"

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of the setting."""
        return self.kind, self.target, self.namespace

    def living(self) -> list[Holder]:
        """Recorders that still need it."""
        return [h for h in self.holders if h.lives()]


class State:
    """The changes, locked for as long as the ``with`` lasts; ``save`` before and after each change is made."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.directory = root / DIRECTORY
        self.changes: list[Change] = []
        self._root = root
        self._fd = self._lock = -1

    def exists(self) -> bool:
        """Whether any recorder has changed something since the machine started."""
        return os.path.lexists(self.directory)

    def __enter__(self) -> State:
        try:
            with contextlib.suppress(FileExistsError):
                self.directory.mkdir(mode=0o700)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self.directory, flags)
            if os.fstat(self._fd).st_uid != os.geteuid():
                raise RecordError(f"{self.directory}: belongs to another user", "remove it")
            os.fchmod(self._fd, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(_LOCK, flags, 0o600, dir_fd=self._fd)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.changes = self._load()
        except OSError as e:
            self.__exit__()
            raise RecordError(
                f"{self.directory}: {e.strerror}", "what --fix changes is noted there; record without --fix"
            ) from e
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._lock, self._fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def find(self, key: tuple[str, str, int]) -> Change | None:
        """The change of that setting, if there is one."""
        return next((c for c in self.changes if c.key == key), None)

    def save(self) -> None:
        """Replace the file. Raises OSError."""
        if not self.changes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_CHANGES, dir_fd=self._fd)
            return
        data = {"version": _VERSION, "boot_id": self._boot_id(), "changes": [asdict(c) for c in self.changes]}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_NEW, dir_fd=self._fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(_NEW, flags, 0o600, dir_fd=self._fd), "w", encoding="ascii") as f:
            json.dump(data, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        os.rename(_NEW, _CHANGES, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _load(self) -> list[Change]:
        try:
            fd = os.open(_CHANGES, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return []
        with open(fd, "rb") as f:
            text = f.read() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        try:
            data = json.loads(text)
            if data["boot_id"] != self._boot_id():
                return []  # the changes ended with the previous boot
            return [Change(**{**c, "holders": [Holder(**h) for h in c["holders"]]}) for c in data["changes"]]
        except (ValueError, KeyError, TypeError) as e:
            raise RecordError(
                f"{self.directory / _CHANGES}: not readable as a list of what --fix changed ({e})",
                "put back by hand what it names, and remove it",
            ) from e

    def _boot_id(self) -> str:
        try:
            return (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
