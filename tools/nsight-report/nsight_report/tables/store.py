# SPDX-License-Identifier: GPL-2.0-only
"""Where the pipeline keeps its tables: Parquet files and one stages.json beside them.

Files are written under a temporary name and renamed, so a reader never sees half a table and
a full disk leaves the previous file. Unreadable files in a store are treated as absent, and so are
files that this user did not make (seal.py): they can always be computed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import files
from ..errors import BadInput, OutputError
from . import schema, seal

_STAGES = "stages.json"
_SCRATCH = ".scratch-"
_MAX_STAGES_BYTES = 1 << 20
_MAX_CORES = 4096
_BY_CORE = (b"calls", b"contexts")
#: Those of them whose numbers ascend.
ASCENDING = ("call_id", "start_ns")
COMPRESSION = "lz4"

#: Number of rows that are read or skipped together.
GROUP_ROWS = 1 << 17
#: Key in the file's metadata: the last end of a call of each row group, in ns.
LAST_ENDS = "nsight.last_ends_ns"
#: Key in the file's metadata: the kinds of rows in each row group.
KINDS = "nsight.kinds"


@contextmanager
def writing(what: str | Path) -> Iterator[None]:
    """Turn a failed write into an OutputError that names the file and the fix."""
    try:
        yield
    except BrokenPipeError:  # the reader ended: nothing failed
        raise
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
    # O_EXCL: a capture from elsewhere may contain symlinks that would redirect the write.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield partial
        # Some file systems report a full disk late: only fsync is certain.
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Written:
    """A table that a stage wrote itself, because it may not fit in memory; the store takes over the file."""

    path: Path

    def n_rows(self) -> int:
        """How many it has."""
        return int(pq.read_metadata(self.path).num_rows)


class Writer:
    """A table's Parquet file, written piece by piece; ``n_rows`` so far.

    Tables of what cores did are in order of core and time: a row group is an interval of one core, so that
    a reader can decide from statistics which groups it needs (tables/intervals.py).
    """

    def __init__(self, path: Path, arrow: pa.Schema) -> None:
        self.n_rows = 0
        self._ends: list[int] = []
        self._kinds: list[list[str]] = []
        self._by_core = (arrow.metadata or {}).get(b"nsight.table") in _BY_CORE
        # Numbers hardly repeat: a dictionary of them only costs time. Ascending ones are read fastest as
        # differences, others split by bytes; and zstd would take twice the time of lz4 to save a quarter.
        split = [f.name for f in arrow if pa.types.is_primitive(f.type) and f.type.bit_width == 64]
        words = [f.name for f in arrow if f.name not in split and not pa.types.is_boolean(f.type)]
        self._writer = pq.ParquetWriter(
            path,
            arrow,
            compression=COMPRESSION,
            use_dictionary=words,
            column_encoding={
                name: "DELTA_BINARY_PACKED" if self._by_core and name in ASCENDING else "BYTE_STREAM_SPLIT"
                for name in split
            },
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._ends:
            self._writer.add_key_value_metadata({LAST_ENDS: json.dumps(self._ends)})
        if self._kinds:
            self._writer.add_key_value_metadata({KINDS: json.dumps(self._kinds)})
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        """Append rows that have the table's schema."""
        for piece in _cores(table) if self._by_core else [table]:
            for first in range(0, max(piece.num_rows, 1), GROUP_ROWS):
                group = piece.slice(first, GROUP_ROWS)
                if "dur_ns" in group.column_names and group.num_rows:
                    end = group["start_ns"].to_numpy() + group["dur_ns"].to_numpy()
                    self._ends.append(int(end.max()))
                if self._by_core and group.num_rows:
                    self._kinds.append(sorted(group["kind"].unique().to_pylist()))
                self._writer.write_table(group, row_group_size=GROUP_ROWS)
        self.n_rows += table.num_rows


def _cores(table: pa.Table) -> list[pa.Table]:
    """The rows of each core, if they are in that order."""
    cpu = table["cpu"].to_numpy()
    cuts = np.flatnonzero(cpu[1:] != cpu[:-1]) + 1
    if len(cuts) > _MAX_CORES:
        return [table]
    edges = [0, *cuts.tolist(), table.num_rows]
    return [table.slice(low, high - low) for low, high in pairwise(edges)]


class Store:
    """Tables in ``directory``, and what each stage was made from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stages = self._read_stages()
        #: By table: state of the file when its content was compared, and whether it was as written.
        self._compared: dict[str, tuple[tuple[int, ...], bool]] = {}

    def _read_stages(self) -> dict[str, Any]:
        try:
            with files.opened(self._regular(_STAGES)) as file:
                value = json.loads(file.read(_MAX_STAGES_BYTES))
            return _own(value if isinstance(value, dict) else {})
        except (OSError, ValueError, RecursionError, BadInput):
            return {}

    def _is_as_written(self, name: str) -> bool:
        """Whether a table has the content that this user's entry records."""
        try:
            status = os.lstat(self._regular(f"{name}.parquet"))
        except (OSError, BadInput):
            return False
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if name not in self._compared or self._compared[name][0] != now:
            try:
                found = seal.digest(self.path(name))
            except (OSError, BadInput):
                return False
            # Another run may have made it again since the entries were read.
            same = found in _digests(self._stages, name) or found in _digests(self._read_stages(), name)
            self._compared[name] = now, same
        return self._compared[name][1]

    def _regular(self, name: str) -> Path:
        """A file in the directory, which must not be a link: it could lead to tables of another capture. Raises BadInput."""
        if self.directory.is_symlink():
            raise BadInput(f"{self.directory}: a link", "copy the whole capture directory")
        return self.directory / name

    def entry(self, stage: str) -> dict[str, Any]:
        """The entry of ``stage`` in stages.json: ``made_from``, ``run``, ``tables``; empty if this user never ran it."""
        return self._stages.get(stage, {})

    def path(self, name: str) -> Path:
        """The file of table ``name``, whether it exists or not."""
        return self.directory / f"{name}.parquet"

    def load(self, name: str, spec: str | None = None) -> pa.Table | None:
        """Table ``name``, checked against its schema; None if it is absent, unreadable or not this user's."""
        if not self._is_as_written(name):
            return None
        try:
            with files.parquet(self._regular(f"{name}.parquet")) as file:
                return schema.conform(spec or name, file.read())
        except (OSError, pa.ArrowException, BadInput, ValueError):
            return None

    def holds(self, name: str, spec: str | None = None) -> bool:
        """Whether table ``name`` exists as this user made it, and has the columns of the current schema."""
        if not self._is_as_written(name):
            return False
        try:
            with files.parquet(self._regular(f"{name}.parquet")) as file:
                found = file.schema_arrow
        except (OSError, pa.ArrowException, BadInput):
            return False
        return found.names == schema.TABLES[spec or name].names()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty directory beside the tables, for a stage that makes more than fits in memory."""
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            directory = tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self.directory)
        with directory as name:
            yield Path(name)

    def save(self, stage: str, tables: dict[str, pa.Table | Written], made_from: dict[str, Any]) -> None:
        """Write a stage's tables and, at the very end, its entry in stages.json."""
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        # Without its entry a stage counts as not run: a crash in between costs only time, but
        # an entry that outlives one of its tables would make a mixture look fresh.
        if self._stages.pop(stage, None) is not None:
            self._write_stages()
        digests = {}
        for name, table in tables.items():
            path = self.path(name)
            with writing(path), temporary(path) as partial:
                if isinstance(table, Written):
                    table.path.replace(partial)
                else:
                    with Writer(partial, table.schema) as writer:
                        writer.write(table)
                digests[name] = seal.digest(partial)
        run = hashlib.sha256(os.urandom(16)).hexdigest()[:16]
        # In its JSON form, because the comparison uses what is read back.
        entry = json.loads(json.dumps({"made_from": made_from, "run": run, "tables": digests}))
        self._stages[stage] = entry | {"mark": seal.mark(_marked(stage, entry))}
        self._write_stages()

    def _write_stages(self) -> None:
        text = json.dumps(self._stages, indent=1, sort_keys=True) + "\n"
        write_atomically(self.directory / _STAGES, text.encode())


def _digests(stages: dict[str, Any], name: str) -> list[str]:
    """Digests of table ``name`` in this user's entries."""
    return [entry["tables"][name] for entry in stages.values() if name in entry["tables"]]


def _own(stages: dict[str, Any]) -> dict[str, Any]:
    """The entries that this user made, each for its stage."""
    return {
        stage: entry for stage, entry in stages.items() if isinstance(entry, dict) and _is_own(stage, entry)
    }


def _is_own(stage: str, entry: dict[str, Any]) -> bool:
    content = {key: value for key, value in entry.items() if key != "mark"}
    return seal.is_marked(_marked(stage, content), entry.get("mark"))


def _marked(stage: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content to be sealed; the entry is nested in it, because it could otherwise name another stage."""
    return {"stage": stage, "entry": content}


def place(capture: Path, output: Path | None) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """Where tables of ``capture`` can be written: the capture, else ``output``, else a cache.

    The second value is a temporary directory to keep alive when nothing permanent is writable.
    """
    candidates = [capture / "tables"]
    if output is not None:
        candidates.append(output / "tables")
    identity = hashlib.sha256(os.fsencode(capture.resolve())).hexdigest()[:16]
    if cache := _cache():
        candidates.append(cache / "nsight" / f"{capture.name}-{identity}" / "tables")
    for directory in candidates:
        if _usable(directory):
            return directory, None
    scratch = tempfile.TemporaryDirectory(prefix="nsight-")
    return Path(scratch.name), scratch


def _cache() -> Path | None:
    """The user's cache directory; None for a user without a home, as in many containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None


def _usable(directory: Path) -> bool:
    try:
        if directory.is_symlink():  # from a capture: it could point anywhere
            return False
        directory.mkdir(parents=True, exist_ok=True)
        # Not os.access: it returns true for root on a read-only mount.
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError as error:
        # A full disk is no reason to switch silently: the write reports it, with the fix.
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
