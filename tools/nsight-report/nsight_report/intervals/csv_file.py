# SPDX-License-Identifier: GPL-2.0-only
"""A CSV file of intervals as Arrow tables, some lines at a time: parsed natively, with limits, since the file is not trusted.

Only if a line cannot be read, the file is searched again line by line to report which one.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import pyarrow as pa
from pyarrow import csv as arrow_csv

from .. import files
from ..errors import BadInput
from . import perf_script
from .declarations import Declarations

#: Columns that can describe an interval; the first three are required.
COLUMNS = ("name", "start", "stop", "clock", "thread", "core", "handover", "begin_thread", "begin_core")
_NEEDED = COLUMNS[:3]
#: Columns that show that another thread began it: the first two together, or none.
_HANDED = ("handover", "begin_thread", "begin_core")
#: Format of memcached as changed by the authors of the NSight paper.
MEMCACHED = ("id", "rx_app", "rx_nic", "tx_app", "tx_nic", "rx_ht", "completed")

_WORDS = ("name", "clock")
_LONGEST_LINE = 4096
_MOST_COMMENTS = 1000
_BLOCK = 8 << 20
_HINT = (
    f"a header line {','.join(COLUMNS[:6])} (thread or core may be left out, clock too), then one interval a line, times in ns; "
    "or spans in OTLP JSON, or text of perf script"
)
_CLOCKS = {"memcached": "realtime", "otlp": "realtime"}


@dataclass(frozen=True)
class File:
    """Where the lines begin: ``columns`` of the header; ``n_before`` lines including it and ``place`` bytes come before.

    ``form``: csv, memcached (the authors' columns), otlp (spans in JSON), or perf (text of perf script).
    """

    path: Path
    columns: tuple[str, ...]
    declared: Declarations
    n_before: int
    place: int
    form: str = "csv"

    @property
    def clock(self) -> str:
        """The clock of lines that do not name one."""
        return self.declared.clock or _CLOCKS.get(self.form, "monotonic")


def open_file(path: Path) -> File:
    """Read the comments of a file, and the header if it is CSV. Raises BadInput if it has no intervals."""
    with _opened(path) as stream:
        declared, number = Declarations(), 0
        if stream.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
            stream.read(len(BOM_UTF8))
        while True:
            if form := _form(stream):
                return File(path, (), declared, number, stream.tell(), form)
            number += 1
            where = f"{path}:{number}"
            text = _text(stream.readline(_LONGEST_LINE + 1), where)
            if not text or number > _MOST_COMMENTS:
                raise BadInput(f"{path}: no header line", _HINT)
            words = text.strip()
            if words.startswith("#"):
                declared = declared.with_line(words[1:].split(), where)
            elif words:
                break
        columns = tuple(word.strip().strip('"') for word in words.split(","))
        place = stream.tell()
    if columns != MEMCACHED:
        _check_header(columns, where)
    return File(path, columns, declared, number, place, "memcached" if columns == MEMCACHED else "csv")


def _form(stream: BufferedReader) -> str:
    """otlp or perf if the stream begins such data; else empty."""
    ahead = stream.peek(_LONGEST_LINE)[:_LONGEST_LINE].lstrip()
    if ahead.startswith(b"{"):
        return "otlp"
    return "perf" if not ahead.startswith(b"#") and perf_script.EVENT.match(ahead) else ""


def _check_header(columns: tuple[str, ...], where: str) -> None:
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise BadInput(f"{where}: the header has no column {missing[0]}", _HINT)
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise BadInput(f"{where}: column {unknown[0]!r} is not known", _HINT)
    if len(set(columns)) != len(columns):
        raise BadInput(f"{where}: a column is named twice", _HINT)
    handed = [name for name in _HANDED if name in columns]
    if handed and handed[:2] != list(_HANDED[:2]):
        lacks = next(name for name in _HANDED if name not in handed)
        raise BadInput(
            f"{where}: column {handed[0]} without column {lacks}",
            "a hand-over needs both a time and a thread",
        )


def tables(file: File) -> Iterator[pa.Table]:
    """The lines after the header: words as dictionaries, numbers as int64, null for empty fields.

    Raises BadInput, which names the first line that cannot be read; the tables before it were returned already.
    """
    types = {
        name: pa.dictionary(pa.int32(), pa.string()) if name in _WORDS else pa.int64()
        for name in file.columns
    }
    try:
        with _opened(file.path) as stream:
            stream.seek(file.place)
            if not stream.peek(1):
                return
            reader = arrow_csv.open_csv(
                stream,
                arrow_csv.ReadOptions(column_names=file.columns, block_size=_BLOCK),
                arrow_csv.ParseOptions(newlines_in_values=False),
                arrow_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
            )
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _at_fault(file, error) from None


def _opened(path: Path) -> BufferedReader:
    try:
        return files.opened(path, "write the intervals to a regular file, and name that file")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "name a CSV file of intervals") from None


def _text(line: bytes, where: str) -> str:
    if len(line) > _LONGEST_LINE:
        raise BadInput(f"{where}: the line is longer than {_LONGEST_LINE} bytes", _HINT)
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{where}: not text in UTF-8", _HINT) from None


def _at_fault(file: File, error: Exception) -> BadInput:
    """Error for the first line that cannot be read, with the reason."""
    with _opened(file.path) as stream:
        stream.seek(file.place)
        number = file.n_before
        while line := stream.readline(_LONGEST_LINE + 1):
            number += 1
            where = f"{file.path}:{number}"
            try:
                text = _text(line, where).rstrip("\r\n")
                fields = next(csv.reader([text]), [])
            except BadInput as bad:
                return bad
            except csv.Error as bad:
                return BadInput(f"{where}: not a line of CSV: {bad}", _HINT)
            if text and len(fields) != len(file.columns):
                return BadInput(
                    f"{where}: {len(fields)} fields, and the header has {len(file.columns)}", _HINT
                )
            for name, value in zip(file.columns, fields, strict=False):
                if name not in _WORDS and value and not _is_number(value):
                    return BadInput(f"{where}: {name} {value[:40]!r} is not a whole number", _HINT)
    return BadInput(f"{file.path}: {str(error)[:200]}", _HINT)


def _is_number(text: str) -> bool:
    try:
        return -(1 << 63) <= int(text) < 1 << 63 and "_" not in text
    except ValueError:
        return False
