# SPDX-License-Identifier: GPL-2.0-only
"""Read events.tsv, the output of the message probes, into the ``events`` table.

The format is described in Documentation/formats.md. Captures are untrusted: a line counts only
if every field of it can be true; the others are counted by reason.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from ..errors import BadInput
from ..losses import Ledger
from . import event_fields as fields
from .event_lines import KINDS, Notes, event_blocks

I64 = npt.NDArray[np.int64]
ToMonotonic = Callable[[I64], "I64 | tuple[I64, npt.NDArray[np.bool_]]"]

MAX_EVENTS = 50_000_000  # about 10 GiB of tables; a capture of seconds has a hundredth of it
_HEADER = re.compile(rb"^#nsight-events (\d+) clock=([a-z_]+)\s*$", re.MULTILINE)
_HINT = "events.tsv must be the unchanged output of bpftrace/nsight-record.bt"
_COLUMNS = [
    "kind",
    "ts",
    "cpu",
    "pid",
    "tid",
    "comm0",
    "comm1",
    "fd",
    "call_ts",
    "sk",
    "netns",
    "proto",
    "family",
    "laddr_hi",
    "laddr_lo",
    "lport",
    "raddr_hi",
    "raddr_lo",
    "rport",
    "seq",
    "len",
    "hwstamp",
    "swstamp",
    "aux",
]
_HEX = ("comm0", "comm1", "sk", "laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo")
_HEX_PATTERN = "^(0x)?[0-9a-f]{1,16}$"
_DICT = pa.dictionary(pa.int32(), pa.string())


def load(path: str | Path, to_monotonic: ToMonotonic | None = None) -> tuple[pa.Table, pa.Table]:
    """Return ``(events, losses)`` of the message events in file ``path``.

    ``events`` conforms to ``schema.EVENTS`` and is sorted by ``ts_ns``. ``to_monotonic`` converts
    an array of the file's clock (boottime) to monotonic; it may also return a pair (array, which
    values could be converted). It is not called when the file is in monotonic time; None takes
    the two clocks as equal, which is true of a machine that was never suspended.

    Raises BadInput when the file is missing, empty, of another kind or of an unknown version.
    """
    ledger = Ledger("capture")
    with _open(path) as data:
        clock = _header(data, path)
        notes = Notes()
        view = memoryview(data)
        try:
            table = _read(view, notes, ledger)
        finally:
            view.release()
    _account(table, notes, ledger)
    columns = fields.decode(table, ledger)
    columns = _in_monotonic(columns, clock, to_monotonic, ledger)
    order = np.argsort(columns["ts_ns"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    return fields.events_table(columns), ledger.table()


def _open(path: str | Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise BadInput(f"{path}: the file is empty", "record again; events.log says why") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "is this a capture directory?") from None


def _header(data: mmap.mmap, path: str | Path) -> str:
    """The clock that the first line names."""
    # bpftrace 0.17 says "Attaching N probes..." before the first probe can print.
    match = _HEADER.search(data[:65536])
    if match is None:
        raise BadInput(f"{path}: no '#nsight-events' line: not a file of message events", _HINT)
    if match[1] != b"1":
        raise BadInput(
            f"{path}: version {match[1].decode()[:20]} of message events is unknown (known: 1)",
            "use the nsight-report of the release that recorded it",
        )
    clock = match[2].decode()
    if clock not in ("boottime", "monotonic"):
        raise BadInput(f"{path}: clock {clock[:20]!r} is unknown (known: boottime, monotonic)", _HINT)
    return clock


def _read(view: memoryview, notes: Notes, ledger: Ledger) -> pa.Table:
    """All plausible event lines as a table of the 24 fields."""
    tables: list[pa.Table] = []
    n_events = malformed = over = 0
    for block in event_blocks(view, notes):
        if not block:
            continue
        table, bad = _parse(block)
        malformed += bad
        room = MAX_EVENTS - n_events
        if table.num_rows > room:
            over += table.num_rows - room
            table = table.slice(0, room)
        n_events += table.num_rows
        tables.append(table)
    ledger.add(
        "event lines beyond the limit",
        over,
        "error",
        f"more than {MAX_EVENTS} events: the rest was not read",
        "record for a shorter time or with a filter",
    )
    ledger.add("event lines with impossible numbers", malformed, "warning", "these events are missing", _HINT)
    if not tables:
        return pa.table({name: pa.array([], _field_type(name)) for name in _COLUMNS})
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _field_type(name: str) -> pa.DataType:
    return _DICT if name == "kind" or name in _HEX else pa.int64()


def _parse(block: bytes, as_text: bool = False) -> tuple[pa.Table, int]:
    """Event lines as a table, and how many had to be left out."""
    types = {name: pa.string() if as_text else _field_type(name) for name in _COLUMNS}
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(column_names=_COLUMNS, block_size=8 << 20),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, escape_char=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        if as_text:
            raise BadInput("events.tsv cannot be parsed", _HINT) from None
        return _parse_carefully(block)
    if not as_text and not all(_only_hex(table[name]) for name in _HEX):
        return _parse_carefully(block)
    return table, 0


def _only_hex(column: pa.ChunkedArray) -> bool:
    return all(
        pc.all(pc.match_substring_regex(chunk.dictionary, _HEX_PATTERN)).as_py() is not False
        for chunk in column.chunks
    )


def _parse_carefully(block: bytes) -> tuple[pa.Table, int]:
    """As _parse, for a block in which some field is no number: leave out only those lines."""
    table, _ = _parse(block, as_text=True)
    good = None
    for name in _COLUMNS[1:]:
        pattern = _HEX_PATTERN if name in _HEX else "^-?[0-9]{1,18}$"
        matches = pc.match_substring_regex(table[name], pattern)
        good = matches if good is None else pc.and_(good, matches)
    n_rows = table.num_rows
    table = table.filter(good)
    return table.cast(pa.schema([(name, _field_type(name)) for name in _COLUMNS])), n_rows - table.num_rows


def _account(table: pa.Table, notes: Notes, ledger: Ledger) -> None:
    """Enter what the probes produced and the file does not have."""
    again = "narrow the filter, or raise BPFTRACE_PERF_RB_PAGES"
    seen = {str(row["values"]): int(row["counts"]) for row in pc.value_counts(table["kind"]).to_pylist()}
    missing = 0
    for kind in KINDS:
        lost = notes.counts.get(kind, 0) - seen.get(kind, 0)
        if lost > 0:
            missing += lost
            ledger.add(
                f"{kind} events lost",
                lost,
                "warning",
                "the probe produced them, bpftrace did not deliver them",
                again,
            )
        elif lost < 0 and notes.ended and kind in notes.counts:
            ledger.add(
                f"more {kind} events than the probes counted",
                -lost,
                "warning",
                "the file was changed or holds more than one recording",
                _HINT,
            )
    # The two counts see the same losses from two sides; only the excess is news.
    ledger.add(
        "events lost by bpftrace",
        max(0, notes.reported_lost - missing),
        "warning",
        "bpftrace says so; of which kind is not known",
        again,
    )
    for key, severity, detail in (
        ("unparsed", "warning", "packets whose headers the probe could not parse have no stamps"),
        ("ack", "info", "pure acknowledgements carry no message and are not printed"),
        ("peek", "info", "reads that leave the data in the socket are no end of a message"),
    ):
        ledger.add(f"probe count: {key}", notes.counts.get(key, 0), severity, detail)
    if not notes.ended:
        ledger.add(
            "message events were cut",
            1,
            "warning",
            "the recording did not end by itself; lost events are known up to its last second",
        )
    elif not notes.counts:
        ledger.add("probe counts missing", 1, "warning", "lost events cannot be known", _HINT)
    ledger.add("unfinished last line", notes.truncated, "warning", "the recording was cut in it")
    ledger.add("foreign lines among the events", notes.foreign, "warning", "they were ignored", _HINT)


def _in_monotonic(
    columns: dict[str, npt.NDArray[Any]], clock: str, to_monotonic: ToMonotonic | None, ledger: Ledger
) -> dict[str, npt.NDArray[Any]]:
    """Convert ts_ns and call_ns from the file's clock."""
    if clock == "monotonic" or to_monotonic is None or not len(columns["ts_ns"]):
        return columns
    result = to_monotonic(columns["ts_ns"])
    if isinstance(result, tuple):
        converted, good = result
        bad = int(len(good) - np.count_nonzero(good))
        ledger.add(
            "events outside the clock readings",
            bad,
            "warning",
            "their time cannot be converted; they were left out",
            "let the clock readings span the recording",
        )
        columns = {name: values[good] for name, values in columns.items()}
        converted = converted[good]
    else:
        converted = result
    # boottime runs in step with monotonic except across a suspend, so that the shift of an
    # event also holds for the system call it ended. Readings a call before the first clock
    # reading could not be converted by themselves.
    shift = np.asarray(converted, dtype=np.int64) - columns["ts_ns"]
    call = columns["call_ns"]
    columns["call_ns"] = np.where(call != 0, call + shift, 0)
    columns["ts_ns"] = columns["ts_ns"] + shift
    return columns
