# SPDX-License-Identifier: GPL-2.0-only
"""Every table of the pipeline: its columns, units, time domains and order, read from ``schema/*.csv``.

Stages exchange these tables and nothing else. A stage is a function from tables to
``(table, losses)``; it may rely on the schema and on nothing more.

Times are integer nanoseconds. Columns named ``*_ns`` hold points in time in the
``monotonic`` domain (CLOCK_MONOTONIC of the recorded host) unless their description names
another domain; ``*_latency_ns``, ``*_dur_ns``, ``dur_ns``, ``self_ns``, ``*_error_ns`` and
``*deviation_ns`` are durations. A point in time that was not measured is null, never 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..errors import BadInput

SCHEMA_VERSION = 7

_DIRECTORY = Path(__file__).with_name("schema")
_TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "word": pa.dictionary(pa.int32(), pa.string()),
}


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, meaning (with unit and time domain), whether null is allowed."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool


@dataclass(frozen=True)
class Table:
    """One table: what a row is, in what order rows come, and the columns."""

    name: str
    row: str
    order: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with each column's meaning as field metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=c.nullable, metadata={"doc": c.doc}) for c in self.columns],
            metadata={"nsight.table": self.name, "nsight.schema": str(SCHEMA_VERSION)},
        )

    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]


def type_name(type_: pa.DataType) -> str:
    """The name of a column type in ``schema/*.csv``."""
    return next(name for name, of in _TYPES.items() if of == type_)


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_DIRECTORY / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def _read() -> dict[str, Table]:
    tables = list(_rows("tables"))
    columns: dict[str, list[Column]] = {table["table"]: [] for table in tables}
    for domain in dict.fromkeys(table["domain"] for table in tables):
        for of in _rows(domain):
            column = Column(of["column"], _TYPES[of["type"]], of["meaning"], of["null"] == "null")
            columns[of["table"]].append(column)
    return {t["table"]: Table(t["table"], t["row"], t["order"], tuple(columns[t["table"]])) for t in tables}


TABLES = _read()
#: Tables made on request, not by stages: by ``waits.explain``, and by ``hops`` from what nsight-capsule collected.
_ASKED = ("wait_pieces", "request_work", "packets", "hops")
#: Tables that a capture stores.
STORED = tuple(name for name in TABLES if name not in _ASKED)


def conform(name: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with exactly the columns and types of table ``name``.

    Columns are reordered and cast (lossless casts only). Raises BadInput when a column is
    missing or a null is in a column that does not allow it, so that a stage fails where the fault is.
    """
    spec = TABLES[name].arrow()
    missing = [f.name for f in spec if f.name not in table.column_names]
    if missing:
        raise BadInput(
            f"table {name}: columns missing: {', '.join(missing)}",
            "delete tables/ in the capture and run nsight-report again",
        )
    arrays = []
    for field in spec:
        col = table[field.name]
        if col.type != field.type:
            if pa.types.is_dictionary(field.type):
                # Arrow has no cast between dictionaries with different index or value types.
                col = col.cast(field.type.value_type).dictionary_encode()
            col = col.cast(field.type)
        if not field.nullable and col.null_count:
            raise BadInput(f"table {name}: column {field.name} has {col.null_count} nulls")
        arrays.append(col)
    return pa.Table.from_arrays(arrays, schema=spec)


def empty(name: str) -> pa.Table:
    """An empty table with the schema of ``name``."""
    return TABLES[name].arrow().empty_table()
