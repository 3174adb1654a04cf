# SPDX-License-Identifier: GPL-2.0-only
"""Spans of OpenTelemetry in OTLP JSON, as tables of intervals: one batch per line as collectors write it, or one document.

A span belongs to the thread in attribute ``thread.id``, if that is one of process ``process.pid`` (of its resource),
and without the attribute to that process' first thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import files
from ..errors import BadInput

#: Limit of a line, or of a file with one document: in memory it is about ten times as large.
MOST_BYTES = 64 << 20
_HINT = "write spans with a collector's file exporter (OTLP JSON: resourceSpans, scopeSpans, spans), a batch a line"
_COLUMNS = ("name", "start", "stop", "thread", "process")
#: Value for an attribute that is not a thread number.
NO_THREAD = 0
_MOST = 1 << 62
#: In the order of the columns.
Span = tuple[str, int, int, int | None, int | None]


def tables(path: Path, place: int, n_before: int) -> Iterator[pa.Table]:
    """Spans after ``place`` bytes and ``n_before`` lines; null: not given, times of -1: no times, thread 0: not a valid thread number.

    Raises BadInput, which names the line that is not a batch of spans.
    """
    with files.opened(path) as stream:
        stream.seek(place)
        number, is_first = n_before, True
        while line := stream.readline(MOST_BYTES + 1):
            number += 1
            _check_length(line, f"{path}:{number}")
            if not line.strip():
                continue
            batch = _parsed(line)
            if batch is None and is_first:  # one document over many lines
                line += stream.read(MOST_BYTES + 1 - len(line))
                _check_length(line, str(path))
                batch = _parsed(line)
            if not isinstance(batch, dict):
                raise BadInput(f"{path}:{number}: not a batch of spans in JSON", _HINT)
            is_first = False
            yield _table(list(_spans(batch, f"{path}:{number}")))


def _check_length(line: bytes, where: str) -> None:
    if len(line) > MOST_BYTES:
        raise BadInput(f"{where}: more than {MOST_BYTES >> 20} MiB in one JSON document", _HINT)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _table(spans: list[Span]) -> pa.Table:
    names = pa.array([span[0] for span in spans], pa.string()).dictionary_encode()
    arrays = [names, *(pa.array([span[i] for span in spans], pa.int64()) for i in range(1, len(_COLUMNS)))]
    return pa.Table.from_arrays(arrays, names=_COLUMNS)


def _spans(batch: dict[str, Any], where: str) -> Iterator[Span]:
    for of_resource in _list(batch, "resourceSpans", where):
        process = _attribute(of_resource.get("resource"), "process.pid")
        for scope in _list(of_resource, "scopeSpans", where):
            for span in _list(scope, "spans", where):
                name = span.get("name")
                if not isinstance(name, str):
                    raise BadInput(f"{where}: a span without a name", _HINT)
                start, stop = (_number(span.get(of), -1) for of in ("startTimeUnixNano", "endTimeUnixNano"))
                # A lone surrogate cannot be stored in a table.
                name = name.encode(errors="replace").decode()
                yield name, start, stop, _attribute(span, "thread.id"), process


def _list(of: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    found = of.get(name, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BadInput(f"{where}: {name} is not a list of objects", _HINT)
    return found


def _attribute(of: Any, key: str) -> int | None:
    """A whole number among attributes; None: absent, NO_THREAD: present, but no number that fits."""
    attributes = of.get("attributes") if isinstance(of, dict) else None
    for attribute in attributes if isinstance(attributes, list) else ():
        if isinstance(attribute, dict) and attribute.get("key") == key:
            value = attribute.get("value")
            words = value.values() if isinstance(value, dict) else ()
            return next((_number(word, NO_THREAD) for word in words), NO_THREAD)
    return None


def _number(value: Any, default: int) -> int:
    """A JSON number, or a text of digits, which OTLP uses for 64 bits."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST else default
