# SPDX-License-Identifier: GPL-2.0-only
"""The file that a user names for an export: replaced when it is completely written, unless it is a pipe or a device."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import OutputError, UsageError
from ..tables.store import temporary, writing


def check(path: Path) -> None:
    """Raises UsageError if ``path`` is a directory, OutputError if it exists and cannot be written."""
    kind = _kind(path)
    if not path.name or stat.S_ISDIR(kind):
        raise UsageError(f"{path}: is a directory", f"name a file in it: -o {path / 'NAME'}")
    if kind and not (stat.S_ISREG(kind) or _streams(path, kind)):
        raise OutputError(
            f"{path}: cannot be written: it is neither a file nor a pipe", "choose another one with -o FILE"
        )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """``path`` for writing: a file is written completely or not at all; a pipe or a character device is written directly.

    A symlink is followed, as by open(). Raises like ``check``, and OutputError when writing fails; BrokenPipeError when
    the reader of a pipe ended.
    """
    check(path)
    with writing(path):
        if _streams(path, _kind(path)):
            with os.fdopen(_stream(path), "wb") as file:
                yield file
            return
        with temporary(_followed(path)) as partial, partial.open("wb") as file:
            yield file


def is_stdout(path: Path) -> bool:
    """Whether ``path`` is standard output under another name, such as /dev/stdout."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (
        OSError,
        ValueError,
        AttributeError,
    ):  # it does not exist; or Python has none, or one without a descriptor
        return False


def _kind(path: Path) -> int:
    """Type and mode of what ``path`` leads to; 0 if it does not exist."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _streams(path: Path, kind: int) -> bool:
    # /dev/stdout may lead to a file that another process continues to write: it must not be replaced.
    return stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) or (path.is_symlink() and is_stdout(path))


def _stream(path: Path) -> int:
    # A file opened again would be written from its begin, and a socket cannot be opened.
    return os.dup(sys.stdout.fileno()) if is_stdout(path) else os.open(path, os.O_WRONLY)


def _followed(path: Path) -> Path:
    """Where a symlink leads. The kernel resolves it, because it does not follow links that others leave in /tmp."""
    if not path.is_symlink():
        return path
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    finally:
        os.close(descriptor)
