# SPDX-License-Identifier: GPL-2.0-only
"""Where the pipeline keeps its tables: Parquet files and one stages.json beside them.

Files are written under a temporary name and renamed, so a reader never sees half a table and
a full disk leaves what was there before. Anything unreadable in a store is treated as absent:
it can always be computed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import schema
from .errors import BadInput, OutputError

_STAGES = "stages.json"
_MAX_STAGES_BYTES = 1 << 20


@contextmanager
def writing(what: str | Path) -> Iterator[None]:
    """Turn a failed write into an OutputError that names the file and the cure."""
    try:
        yield
    except OSError as error:
        raise _output_error(str(what), error) from None


def _output_error(what: str, error: OSError) -> OutputError:
    text = str(error).lower()  # pyarrow does not always set errno
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "no space left" in text:
        return OutputError(
            f"{what}: the disk is full; the recorded data is intact",
            "free some space, or write elsewhere with -o DIR",
        )
    reason = error.strerror or str(error)
    return OutputError(f"{what}: cannot be written: {reason}", "choose another directory with -o DIR")


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` through a temporary file in the same directory."""
    with writing(path), temporary(path) as partial:
        partial.write_bytes(data)


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path``: renamed to it on success, removed on any failure."""
    partial = path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
    # O_EXCL: a capture from elsewhere may hold symlinks that would lead the write astray.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield partial
        # Full disks are reported late on some file systems: only fsync tells for sure.
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class Store:
    """Tables in ``directory``, with what each stage was made from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stages = self._read_stages()

    def _read_stages(self) -> dict[str, Any]:
        try:
            with (self.directory / _STAGES).open("rb") as file:
                value = json.loads(file.read(_MAX_STAGES_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def entry(self, stage: str) -> dict[str, Any]:
        """What stages.json says about ``stage``: ``made_from`` and ``run``; empty if never run."""
        value = self._stages.get(stage)
        return value if isinstance(value, dict) else {}

    def load(self, name: str, spec: str | None = None) -> pa.Table | None:
        """Table ``name``, checked against its schema; None when absent or unreadable."""
        path = self.directory / f"{name}.parquet"
        try:
            return schema.conform(spec or name, pq.read_table(path))
        except (OSError, pa.ArrowException, BadInput, ValueError):
            return None

    def holds(self, name: str, spec: str | None = None) -> bool:
        """Whether table ``name`` is there, whole, and has the columns of today's schema."""
        try:
            found = pq.read_schema(self.directory / f"{name}.parquet")
        except (OSError, pa.ArrowException):
            return False
        return found.names == schema.TABLES[spec or name].names()

    def save(self, stage: str, tables: dict[str, pa.Table], made_from: dict[str, Any]) -> None:
        """Write a stage's tables and, last of all, its entry in stages.json."""
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        # Without its entry a stage counts as not run: a crash in between costs only time, while
        # an entry that outlives one of its tables would pass a mixture off as fresh.
        if self._stages.pop(stage, None) is not None:
            self._write_stages()
        for name, table in tables.items():
            path = self.directory / f"{name}.parquet"
            with writing(path), temporary(path) as partial:
                pq.write_table(table, partial, compression="zstd")
        run = hashlib.sha256(os.urandom(16)).hexdigest()[:16]
        self._stages[stage] = {"made_from": made_from, "run": run}
        self._write_stages()

    def _write_stages(self) -> None:
        text = json.dumps(self._stages, indent=1, sort_keys=True) + "\n"
        write_atomically(self.directory / _STAGES, text.encode())


def place(capture: Path, output: Path | None) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """Where tables of ``capture`` can be written: the capture, else ``output``, else a cache.

    The second value is a temporary directory to keep alive when nothing permanent is writable.
    """
    candidates = [capture / "tables"]
    if output is not None:
        candidates.append(output / "tables")
    identity = hashlib.sha256(os.fsencode(capture.resolve())).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    candidates.append(cache / "nsight" / f"{capture.name}-{identity}" / "tables")
    for directory in candidates:
        if _usable(directory):
            return directory, None
    scratch = tempfile.TemporaryDirectory(prefix="nsight-")
    return Path(scratch.name), scratch


def _usable(directory: Path) -> bool:
    if directory.is_symlink():  # from a capture: it could point anywhere
        return False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Not os.access: it says yes to root on a read-only mount.
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError as error:
        # A full disk is no reason to go elsewhere quietly: the write reports it, with the cure.
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
