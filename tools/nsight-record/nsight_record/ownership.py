# SPDX-License-Identifier: GPL-2.0-only
"""Directories held by descriptor: who owns them, and how they are made and removed. No symbolic link is
followed.

The recorder writes as root into directories that belong to others. There a path can lead somewhere else at
the next look-up; a descriptor cannot.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import OutputError

PRIVATE_UMASK = 0o077
_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o600
_MOST_LINKS = 40  # same as the kernel's MAXSYMLINKS
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class User:
    """A user, and the group for the user's files."""

    uid: int
    gid: int


def invoking_user(environ: Mapping[str, str], euid: int | None = None) -> User | None:
    """The user who called sudo; None if nobody did, or root."""
    if (os.geteuid() if euid is None else euid) != 0:
        return None
    texts = environ.get("SUDO_UID", ""), environ.get("SUDO_GID", "")
    if not all(t.isascii() and t.isdecimal() and len(t) <= 10 for t in texts):
        return None
    uid, gid = map(int, texts)
    # The largest number is not a user: chown(2) takes it for "unchanged".
    return User(uid, gid) if 0 < uid < 0xFFFFFFFF and gid < 0xFFFFFFFF else None


def make_directory(name: str, parent: int) -> int:
    """Make a directory of mode 0700 in the directory ``parent``; returns a descriptor of it. Raises OSError.

    The parent's owner can replace it with another directory before it is opened. The opened one is empty,
    private and owned by this process, so it is as good as the one that was made.
    """
    os.mkdir(name, _DIRECTORY_MODE, dir_fd=parent)
    fd = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise OSError(errno.EPERM, "the file system gives new files of this user to another user")
        os.fchmod(fd, _DIRECTORY_MODE)  # without a set-group-id bit from the parent
        if stat.S_IMODE(os.fstat(fd).st_mode) != _DIRECTORY_MODE:
            raise OSError(errno.EPERM, "the file system cannot keep a directory private (mode 0700)")
        if os.listdir(fd):  # noqa: PTH208 # a descriptor has no path
            raise OSError(errno.EBUSY, "somebody else uses the directory")
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_parent(path: Path, user: User | None) -> tuple[int, str]:
    """(descriptor of the directory that contains ``path``, its name there). Raises OSError, OutputError.

    Missing directories are made; they are private and belong to the user. A symbolic link on the way is
    followed only if it belongs to root or the user: in /tmp anybody could have made it.
    """
    path = path.absolute()
    if path.name in ("", ".."):
        raise OutputError(f"{path}: not a directory name", "choose another name with -o")
    trusted = {0, os.geteuid(), *([user.uid] if user else [])}
    left = list(reversed(path.parent.parts[1:]))
    here, links = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), 0
    try:
        while left:
            part = left.pop()
            there = _step(part, here, user)
            status = os.fstat(there)
            if not stat.S_ISLNK(status.st_mode):
                here, last = there, here
                os.close(last)
                if not stat.S_ISDIR(status.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                continue
            try:
                target = os.readlink("", dir_fd=there)
            finally:
                os.close(there)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if status.st_uid not in trusted:
                raise OutputError(
                    f"{path}: {part} is a symbolic link of another user (uid {status.st_uid})",
                    "choose another place with -o DIR",
                )
            left += reversed([p for p in target.split("/") if p not in ("", ".")])
            if target.startswith("/"):
                here, last = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), here
                os.close(last)
    except BaseException:
        os.close(here)
        raise
    return here, path.name


def _step(part: str, here: int, user: User | None) -> int:
    """A descriptor (O_PATH) of ``part`` in the directory ``here``, also if it is a link; made if missing."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(part, flags, dir_fd=here)
    except FileNotFoundError:
        fd = make_directory(part, here)
        if user:
            os.fchown(fd, user.uid, user.gid)
        return fd


def below(directory: int) -> Iterator[tuple[int, str, os.stat_result]]:
    """(descriptor of its directory, name, status) of everything in ``directory``, contents first.

    Does not follow symbolic links. Raises OSError at a file system mounted inside.
    """
    device = os.fstat(directory).st_dev
    for name in os.listdir(directory):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            if status.st_dev != device:
                raise OSError(errno.EXDEV, f"a file system is mounted in it, at {name}")
            inner = os.open(name, _OPEN_DIRECTORY, dir_fd=directory)
            try:
                yield from below(inner)
            finally:
                os.close(inner)
        yield directory, name, status


def hand_over(directory: int, user: User | None) -> None:
    """Make everything in the directory, and then the directory itself, private and the user's, if there is a
    user.

    The directory itself comes last: until then only root can put files into it. Raises OSError.
    """
    for parent, name, status in below(directory):
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=parent)
            try:
                _give(fd, user, _DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else _FILE_MODE)
            finally:
                os.close(fd)
        elif user:
            os.chown(name, user.uid, user.gid, dir_fd=parent, follow_symlinks=False)
    _give(directory, user, _DIRECTORY_MODE)


def _give(fd: int, user: User | None, mode: int) -> None:
    os.fchmod(fd, mode)
    if user:
        os.fchown(fd, user.uid, user.gid)


def remove_contents(directory: int) -> None:
    """Delete everything in the directory, but nothing that a symbolic link in it leads to. Raises OSError."""
    for name in os.listdir(directory):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
