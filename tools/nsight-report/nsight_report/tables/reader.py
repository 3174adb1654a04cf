# SPDX-License-Identifier: GPL-2.0-only
"""A stored table; only requested row groups and columns are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from .. import files
from ..errors import BadInput
from . import schema

_AGAIN = "delete tables/ in the capture and run nsight-report again"


class Reader:
    """A table from a file of the store, or from memory, where it is one row group.

    ``name``: name of its schema, if not the file's. ``n_read``: subclasses count here what was decoded. Raises BadInput, here
    and when it reads, for a file that cannot be read or does not match its schema.
    """

    def __init__(self, source: pa.Table | Path, name: str | None = None) -> None:
        self.n_read = 0
        self.metadata = None
        if isinstance(source, pa.Table):
            self._table, self._arrow, self.num_rows = source, source.schema, source.num_rows
            return
        self._table, self._path, self._of_thread = None, source, threading.local()
        with self._readable(), files.parquet(source) as file:
            self.metadata = file.metadata
        self._arrow, self.num_rows = self.metadata.schema.to_arrow_schema(), self.metadata.num_rows
        expected = schema.TABLES[name or source.stem].arrow()
        if self._arrow.names != expected.names or self._arrow.types != expected.types:
            raise BadInput(f"{source}: made by another version", _AGAIN)
        self._needed = {field.name for field in expected if not field.nullable}

    @property
    def column_names(self) -> list[str]:
        """Columns of the whole table."""
        return list(self._arrow.names)

    @property
    def n_groups(self) -> int:
        """Number of its row groups."""
        return self.metadata.num_row_groups if self.metadata else 1

    def read(self, group: int, columns: Sequence[str], threads: bool = False) -> pa.Table:
        """Columns of one row group; ``threads``: decoded by several threads."""
        if self._table is not None:
            return self._table.select(columns)
        with self._readable():
            if not hasattr(self._of_thread, "file"):  # a file object has a read position
                self._of_thread.file = files.parquet(self._path, self.metadata)
            table = self._of_thread.file.read_row_group(group, columns=columns, use_threads=threads)
        table = table.select(columns)
        if any(table[name].null_count for name in columns if name in self._needed):
            raise BadInput(f"{self._path}: something is missing in it", _AGAIN)
        return table

    def nothing(self, columns: Sequence[str]) -> pa.Table:
        """None of its rows."""
        return self._arrow.empty_table().select(columns)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"{self._path}: cannot be read: {error}", _AGAIN) from None
