# SPDX-License-Identifier: GPL-2.0-only
"""The capture directory and its manifest.

The manifest is replaced as a whole (temporary file, fsync, rename). Readers of the directory, also after a
crash, find either the old or the new manifest and never half of one.

Packets, addresses and program activity are private data. The directory has mode 0700 and belongs to root
while it is written, also when the recorder is killed. ``hand_over`` then gives it to the user who called
sudo.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

from . import ownership
from .errors import OutputError, unwritable_hint
from .ownership import User

FORMAT = "nsight-capture"
VERSION = 1
MANIFEST = "manifest.json"
_NEW_MANIFEST = MANIFEST + ".new"
_MANIFEST_MOST_BYTES = 16 << 20
_BALLAST = ".reserve"
_BALLAST_BYTES = 256 * 1024  # for the last manifest; the same amount again for the programs' counts
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def default_name(hostname: str, local_time: str) -> str:
    """``nsight-HOST-TIME.nsight``; characters that are not allowed in a file name are replaced."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in hostname)
    return f"nsight-{safe}-{local_time}.nsight"


class Capture:
    """An open capture directory.

    ``manifest`` can be changed freely; ``save`` writes it. A ballast file reserves disk space, so that the
    last manifest can be written even when the recording filled the disk.

    ``path`` is for people, ``directory`` is for opening files. It leads to the directory that was made here,
    even if somebody has put another one in its place; that also holds in the recording programs, which
    inherit the descriptor. They also inherit the lock that shows --force that the capture is still being
    written.

    ``within`` is the directory that contains ``path``, held open; it is then not looked up by path.
    """

    def __init__(
        self, path: Path, *, force: bool = False, user: User | None = None, within: int | None = None
    ) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "state": "recording"}
        self._user = user
        self._fd = -1
        try:
            if within is None:
                parent, name = ownership.open_parent(path, user)
            else:
                parent, name = os.dup(within), path.name
            try:
                self._make_room(parent, name, force)
                self._fd = ownership.make_directory(name, parent)
                self._reserve(parent, name)
            finally:
                os.close(parent)
        except OSError as e:
            self.close()
            raise OutputError(f"{path}: {e.strerror}", "choose a writable place with -o DIR") from e
        os.set_inheritable(self._fd, True)
        self.directory = Path(f"/proc/self/fd/{self._fd}")

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reserve(self, parent: int, name: str) -> None:
        try:
            with contextlib.suppress(OSError):  # not every network file system can lock a directory
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(os.open(_BALLAST, _CREATE, 0o600, dir_fd=self._fd), "wb") as f:
                os.posix_fallocate(f.fileno(), 0, 2 * _BALLAST_BYTES)
        except OSError:
            with contextlib.suppress(OSError):
                ownership.remove_contents(self._fd)
                os.rmdir(name, dir_fd=parent)
            raise

    def _make_room(self, parent: int, name: str, force: bool) -> None:
        """Remove an existing capture if the user requested it."""
        try:
            os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not force:
            raise OutputError(f"{self.path}: exists", "choose another name with -o, or --force to replace it")
        try:
            old = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError as e:
            if e.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise self._foreign("it is a file or a symbolic link") from None
        try:
            self._check_replaceable(old)
            ownership.remove_contents(old)
        finally:
            os.close(old)
        os.rmdir(name, dir_fd=parent)

    def _check_replaceable(self, old: int) -> None:
        """Raises OutputError for anything that --force does not replace, before anything is touched."""
        owner = os.fstat(old).st_uid
        if owner not in (0, os.geteuid(), self._user.uid if self._user else 0):
            raise OutputError(
                f"{self.path}: exists and belongs to another user (uid {owner}); --force does not replace it",
                "choose another name with -o",
            )
        try:
            fd = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=old)
        except OSError as e:
            raise self._foreign(f"{MANIFEST}: {e.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._foreign(f"its {MANIFEST} is no regular file")
        with open(fd, "rb") as f:
            text = f.read(_MANIFEST_MOST_BYTES)
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise self._foreign(f"its {MANIFEST} was not written by NSight")
        try:
            fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"{self.path}: is being recorded; --force does not replace it",
                "wait until it has ended, or choose another name with -o",
            ) from None
        except OSError:
            pass  # a file system without locks
        try:
            for _ in ownership.below(old):
                pass
        except OSError as e:
            raise OutputError(
                f"{self.path}: {e.strerror}; --force does not replace it", "choose another name with -o"
            ) from e

    def _foreign(self, why: str) -> OutputError:
        return OutputError(
            f"{self.path}: exists and is not a capture ({why}); --force replaces captures only",
            "choose another name with -o",
        )

    def save(self) -> None:
        """Write the manifest; raises OutputError if it cannot be written."""
        text = json.dumps(self.manifest, indent=1, ensure_ascii=True) + "\n"
        try:
            with open(self.create(_NEW_MANIFEST), "w", encoding="ascii") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
            os.rename(_NEW_MANIFEST, MANIFEST, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as e:
            with contextlib.suppress(OSError):  # a file system that became read-only keeps it
                self._unlink(_NEW_MANIFEST)
            raise OutputError(
                f"{self.path / MANIFEST}: {e.strerror}", unwritable_hint(e.strerror or "")
            ) from e

    def create(self, name: str) -> int:
        """A descriptor of a new file in the capture; an existing file is replaced."""
        self._unlink(name)
        return os.open(name, _CREATE, 0o600, dir_fd=self._fd)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def adopt(self, parent: int, directory: str, name: str) -> None:
        """Move a directory from the directory ``parent`` into the capture, as ``name``. Raises OSError."""
        os.rename(directory, name, src_dir_fd=parent, dst_dir_fd=self._fd)

    def release_half_of_reserve(self) -> None:
        """Give back the space that the programs need to write their counts: call before they are stopped."""
        with contextlib.suppress(OSError):
            fd = os.open(_BALLAST, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                os.ftruncate(fd, _BALLAST_BYTES)
            finally:
                os.close(fd)

    def release_reserve(self) -> None:
        """Give the reserved space back: call before the last ``save``, which says so if nothing can be written."""
        with contextlib.suppress(OSError):
            self._unlink(_BALLAST)

    def hand_over(self) -> None:
        """The last step: files get mode 0600, and the user who called sudo owns everything. Raises
        OutputError."""
        try:
            ownership.hand_over(self._fd, self._user)
        except OSError as e:
            raise OutputError(f"{self.path}: {e.strerror}; root still owns it", "chown -R it by hand") from e

    def free_bytes(self) -> int:
        """Bytes that the recording may still write."""
        s = os.fstatvfs(self._fd)
        return s.f_bavail * s.f_frsize

    def size(self, name: str) -> int:
        """Bytes of one file or directory of the capture; 0 when it is not there."""
        path = self.directory / name
        try:
            if path.is_dir():
                return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
            return path.stat().st_size
        except OSError:
            return 0
