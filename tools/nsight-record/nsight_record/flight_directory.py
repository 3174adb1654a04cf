# SPDX-License-Identifier: GPL-2.0-only
"""Where windows are written, and which flight recorders run on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Container, Iterator
from pathlib import Path

from . import ownership
from .errors import OutputError, RecordError
from .ownership import User
from .state import DIRECTORY as STATE


class Directory:
    """The directory for the windows, held open; made if it does not exist."""

    def __init__(self, path: Path, user: User | None) -> None:
        self.path = path
        try:
            parent, name = ownership.open_parent(path, user)
            try:
                try:
                    self.fd = ownership.make_directory(name, parent)
                    if user:
                        os.fchown(self.fd, user.uid, user.gid)
                except FileExistsError:
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    self.fd = os.open(name, flags, dir_fd=parent)
            finally:
                os.close(parent)
        except OSError as e:
            raise OutputError(f"{path}: {e.strerror}", "choose a writable place with -o DIR") from e
        owner = os.fstat(self.fd).st_uid
        if owner not in (0, os.geteuid(), user.uid if user else 0):
            os.close(self.fd)
            raise OutputError(
                f"{path}: belongs to another user (uid {owner})", "choose another place with -o"
            )
        os.set_inheritable(self.fd, True)
        self._run, self.run_fd = f".run-{os.getpid()}", -1

    def begin(self) -> Path:
        """Make the directory that the programs write to, held open; returns a path to it. Raises OSError.

        The owner of this directory can put another one, or a link, in its place, but cannot change its
        content.
        """
        self.run_fd = ownership.make_directory(self._run, self.fd)
        os.set_inheritable(self.run_fd, True)
        return Path(f"/proc/self/fd/{self.run_fd}")

    def used(self) -> int:
        """Bytes of the windows in it, and of files of recorders that are running or were killed."""
        return self._bytes("*.nsight") + self._bytes(".run-*")

    def left(self) -> list[tuple[Path, int]]:
        """Directories that killed recorders left, and their bytes. They are not removed: the directory may
        belong to a user, who can put anything there under such a name."""
        names = (p.name for p in Path(f"/proc/self/fd/{self.fd}").glob(".run-*"))
        pids = {name: name.removeprefix(".run-") for name in sorted(names)}
        gone = [n for n, pid in pids.items() if pid.isdecimal() and not Path("/proc", pid).exists()]
        return [(self.path / name, self._bytes(name)) for name in gone]

    def _bytes(self, names: str) -> int:
        tops = [p for p in Path(f"/proc/self/fd/{self.fd}").glob(names) if not p.is_symlink()]
        return sum(_size(Path(at, name)) for top in tops for at, _, files in os.walk(top) for name in files)

    def close(self, *, keep_logs: bool) -> None:
        """Remove what holds no window, and close the directory."""
        if self.run_fd >= 0:
            for log in () if keep_logs else ("clock.log", "collect.log", "perf.log"):
                with contextlib.suppress(OSError):
                    os.unlink(log, dir_fd=self.run_fd)
            with contextlib.suppress(OSError):
                os.rmdir("records", dir_fd=self.run_fd)
            os.close(self.run_fd)
            with contextlib.suppress(OSError):
                os.rmdir(self._run, dir_fd=self.fd)
        os.close(self.fd)


def _size(path: Path) -> int:
    """Bytes of a regular file; 0 if it is none or was removed in the meantime."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


@contextlib.contextmanager
def registered(root: Path) -> Iterator[None]:
    """Registers this process while it runs, so that ``ask_all`` finds it."""
    path = root / STATE / f"flight-{os.getpid()}"
    fd = -1
    try:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(path, flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        if fd >= 0:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(fd)


def ask_all(root: Path, only: Container[int] | None = None) -> list[int]:
    """Make every flight recorder of this machine, or ``only`` these processes, write a window now; returns
    their process ids. Raises RecordError."""
    asked = []
    directory = root / STATE
    for path in sorted(directory.glob("flight-*")):
        pid = path.name.partition("-")[2]
        if not pid.isdecimal() or (only is not None and int(pid) not in only):
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            # A free lock means that the process has ended; its number may belong to another process by now.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            os.kill(int(pid), signal.SIGUSR1)
            asked.append(int(pid))
        finally:
            os.close(fd)
    if not asked:
        raise RecordError("no flight recorder runs on this machine", "start one: nsight-record --flight")
    return asked
