# SPDX-License-Identifier: GPL-2.0-only
"""Files of captures, which anybody may have written: only regular ones are opened, through no link, without waiting."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import pyarrow.parquet as pq

from .errors import BadInput

FIX = "copy the whole capture directory, or record again"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def descriptor(path: Path, fix: str = FIX) -> int:
    """Descriptor of a regular file that is no link, open for reading. Raises BadInput (with ``fix``) for anything else; OSError."""
    try:
        # A pipe without a writer opens at once, and is refused below; a device may do anything when it is opened.
        if not stat.S_ISREG(path.lstat().st_mode):
            raise _irregular(path, fix)
        found = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _irregular(path, fix) from None
        raise
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise _irregular(path, fix)
    return found


def _irregular(path: Path, fix: str) -> BadInput:
    return BadInput(f"{path}: not a regular file", fix)


def opened(path: Path, fix: str = FIX) -> BufferedReader:
    """The file, open for reading. Raises like ``descriptor``."""
    return os.fdopen(descriptor(path, fix), "rb")


@contextmanager
def named(path: Path) -> Iterator[str]:
    """A name for the file that was checked, for libraries that open files by name. Raises like ``descriptor``."""
    found = descriptor(path)
    try:
        yield f"/proc/self/fd/{found}"
    finally:
        os.close(found)


def parquet(path: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """The Parquet file of a table. Raises like ``descriptor``, and pa.ArrowException."""
    with named(path) as name:
        return pq.ParquetFile(name, metadata=metadata)
