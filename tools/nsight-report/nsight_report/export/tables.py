# SPDX-License-Identifier: GPL-2.0-only
"""Every table of a capture as Parquet or CSV, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from .. import files
from ..errors import UsageError
from ..names import readable
from ..tables import schema
from ..tables.store import temporary, writing

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables


def check(names: Sequence[str]) -> None:
    """Raises UsageError for a name that is not a table."""
    unknown = sorted(set(names) - set(schema.STORED))
    if unknown:
        raise UsageError(f"no table {unknown[0]!r}", f"tables are: {', '.join(schema.STORED)}")


def export(
    capture: CaptureTables, kind: str, directory: Path, names: list[str] | None = None
) -> dict[str, int]:
    """Write ``directory``/NAME.parquet or .csv; returns the number of rows of each.

    Files have the columns of ``schema.py``. In CSV, a null becomes an empty field, texts are quoted, and unprintable characters are
    written out; Parquet has texts as they were recorded.
    """
    check(names or ())
    capture.analyse()
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return {
        name: _write(capture, kind, name, directory / f"{name}.{kind}") for name in names or schema.STORED
    }


def _write(capture: CaptureTables, kind: str, name: str, path: Path) -> int:
    n_rows = 0
    arrow = schema.TABLES[name].arrow()
    with writing(path), temporary(path) as partial:
        if kind == "parquet":
            with pq.ParquetWriter(partial, arrow, compression="zstd") as writer:
                for piece in _pieces(capture, name):
                    writer.write_table(piece)
                    n_rows += piece.num_rows
        else:
            plain = pa.schema([pa.field(f.name, _plain(f.type)) for f in arrow])
            with pc.CSVWriter(partial, plain) as writer:
                for piece in _pieces(capture, name):
                    writer.write_table(_readable(piece.cast(plain)))
                    n_rows += piece.num_rows
    return n_rows


def _readable(table: pa.Table) -> pa.Table:
    """Texts as every other text shows them. Thread names and symbols can contain terminal escapes and new lines."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            words = table.column(at).combine_chunks().dictionary_encode()
            shown = pa.array(map(readable, words.dictionary.to_pylist()), pa.string())
            table = table.set_column(at, field, shown.take(words.indices))
    return table


def _pieces(capture: CaptureTables, name: str) -> Iterator[pa.Table]:
    if name == "losses":  # joined from those of every stage
        yield capture.pipeline.losses()
        return
    file = files.parquet(capture.pipeline.path(name))
    for group in range(file.metadata.num_row_groups):
        yield schema.conform(name, file.read_row_group(group))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
