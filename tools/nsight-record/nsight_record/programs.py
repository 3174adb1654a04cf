# SPDX-License-Identifier: GPL-2.0-only
"""Where the recording programs are found: for root only in directories to which only root can write."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

#: The package's own programs; in a checkout, links to where `make build` leaves them.
_BIN = Path(__file__).parent / "bin"
DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")


def own_or_on_path(name: str, path: str | None) -> str | None:
    """Program ``name`` of this package, else the one on ``path``; None if neither exists."""
    own = _BIN / name
    return str(own) if own.is_file() and os.access(own, os.X_OK) else shutil.which(name, path=path)


def search_path() -> str | None:
    """``trusted`` for root. None, the caller's own PATH, for others: they gain nothing by changing it."""
    return trusted() if os.geteuid() == 0 else None


def trusted(directories: Iterable[str] = DIRECTORIES) -> str:
    """The ``directories`` to which only root can write, in the form of PATH."""
    return os.pathsep.join(d for d in directories if _only_root_writes(Path(d)))


def _only_root_writes(directory: Path) -> bool:
    """Whether only root can put a program there, or another directory in its place."""
    try:
        real = directory.resolve(strict=True)
        statuses = [d.stat() for d in (real, *real.parents)]
    except OSError:
        return False
    itself, above = statuses[0], statuses[1:]
    # In a sticky directory nobody else can rename files that belong to root.
    return not _others_write(itself) and not any(
        _others_write(s) for s in above if not s.st_mode & stat.S_ISVTX
    )


def _others_write(status: os.stat_result) -> bool:
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
    return bool(status.st_uid != 0 or by_group or status.st_mode & stat.S_IWOTH)
