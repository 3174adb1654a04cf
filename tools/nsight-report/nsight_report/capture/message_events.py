# SPDX-License-Identifier: GPL-2.0-only
"""Read events.tsv, the output of the message probes, into the ``events`` table.

The format is described in Documentation/formats.md. Captures are untrusted: a line counts only
if all its fields are possible; the others are counted by reason.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from .. import files
from ..errors import BadInput
from ..losses import Ledger, of_group
from ..tables import schema
from ..tables.external_sort import Rows, Runs, to_table
from ..tables.store import Writer, Written, writing
from . import event_fields as fields
from . import message_lines
from .event_lines import KINDS, Notes, event_blocks
from .event_order import Order

I64 = npt.NDArray[np.int64]
ToMonotonic = Callable[[I64], "I64 | tuple[I64, npt.NDArray[np.bool_]]"]

MAX_EVENTS = 50_000_000  # 6 GiB of scratch space; a capture of seconds has a hundredth of this
_HEADER = re.compile(
    rb"^#nsight-events (\d+) clock=([a-z_]+)(?: min_latency_us=(\d{1,18}) one_of=(\d{1,18}))?\s*$",
    re.MULTILINE,
)
_HINT = "events.tsv must be the unchanged output of bpftrace/nsight-record.bt"
#: Kinds of events that are in the order in which they happened, for each version of the format. From version 2 on, the
#: probes keep the timestamps of packets and hand-offs until the message ends, however long that takes.
_AT_ONCE = {1: KINDS, 2: "RSO"}
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
_HEX_PATTERN = "^(0x)?[0-9a-f]{1,16}$"
_NUMBER_PATTERN = "^-?([0-9]{1,18}|[1-8][0-9]{18})$"  # 64 bits: wall-clock time in ns has 19 digits
_DICT = pa.dictionary(pa.int32(), pa.string())


def load(
    path: str | Path, scratch: Path, to_monotonic: ToMonotonic | None = None
) -> tuple[Written, pa.Table]:
    """Write the message events in file ``path`` to directory ``scratch``; return ``(events, losses)``.

    ``events`` conforms to ``schema.TABLES["events"]`` and is sorted by ``ts_ns``; events with equal times are in the order of the
    file. It is read and sorted in pieces, so that a long recording takes no more memory than a short one.

    ``to_monotonic`` converts an array of the file's clock (boottime) to monotonic; it may also return a pair
    (array, which values could be converted). It is not called if the file is in monotonic time; None treats
    the two clocks as equal, which is true for a machine that was never suspended.

    Raises BadInput if the file is missing, empty, of another kind or of an unknown version.
    """
    ledger, words = Ledger("capture"), fields.Words()
    with _open(path) as file:
        version, clock = _header(file, path)
        convert = None if clock == "monotonic" else to_monotonic
        at_once = _AT_ONCE[version]
        return store(_pieces(file, words, ledger), words, scratch, ledger, convert, at_once), ledger.table()


def _pieces(file: BinaryIO, words: fields.Words, ledger: Ledger) -> Iterator[Rows]:
    """The events of the file, some at a time; at the end, missing ones are entered as losses."""
    notes, seen = Notes(), Counter[str]()
    for table, first in _tables(file, notes, ledger):
        seen.update(_kinds(table))
        decode = fields.decode_text if table.column_names == _COLUMNS else message_lines.decode
        yield decode(table, words, first, ledger)
    _account(seen, notes, ledger)


def store(
    pieces: Iterable[Rows],
    words: fields.Words,
    scratch: Path,
    ledger: Ledger,
    convert: ToMonotonic | None = None,
    at_once: str = KINDS,
) -> Written:
    """Write events (``event_fields.ROW``) as table ``events`` to directory ``scratch``, in order of time.

    The ``pieces`` together hold the events of each core; those of the kinds ``at_once`` are in the order in which the core wrote
    them, and their numbers ascend. Events far out of this order, and events that ``convert`` cannot convert, are left out and entered.
    """
    order = Order()
    runs = Runs(scratch / "events.runs", fields.ROW, ("ts_ns", "number"))
    n_unknown = 0
    for rows in pieces:
        known = np.ones(len(rows), bool)
        if convert is not None and len(rows):
            shift, known = _shift(rows["ts_ns"], convert)
        told = np.isin(rows["kind"], words.numbers("kind", at_once))
        order.take(rows["cpu"][told], rows["ts_ns"][told], rows["number"][told], ~known[told])
        if convert is not None and len(rows):
            rows["call_ns"] = np.where(rows["call_ns"] != 0, rows["call_ns"] + shift, 0)
            rows["ts_ns"] += shift
        n_unknown += int(np.count_nonzero(~known))
        runs.add(rows if known.all() else rows[known])
    rejected = order.rejected()
    ledger.add("events_out_of_order", order.n_rejected)
    ledger.add("events_outside_clock_readings", n_unknown - order.n_marked)
    written = Written(scratch / "events.parquet")
    texts = words.lists()
    with writing(written.path), Writer(written.path, schema.TABLES["events"].arrow()) as writer:
        for rows in runs.merged():
            rows = rows[~np.isin(rows["number"], rejected)] if len(rejected) else rows
            writer.write(to_table("events", rows, texts, null=0))
    return written


def _shift(ts: I64, to_monotonic: ToMonotonic) -> tuple[I64, npt.NDArray[np.bool_]]:
    """The shift of each time, and which times could be converted.

    boottime runs in step with monotonic except across a suspend, so the shift of an
    event also holds for the system call that it ended. The begin of a call before the first clock
    reading could not be converted otherwise.
    """
    result = to_monotonic(ts)
    converted, good = result if isinstance(result, tuple) else (result, np.ones(len(ts), bool))
    return np.asarray(converted, dtype=np.int64) - ts, good


def _open(path: str | Path) -> BinaryIO:
    try:
        file = files.opened(Path(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "is this a capture directory?") from None
    if not os.fstat(file.fileno()).st_size:
        file.close()
        raise BadInput(f"{path}: the file is empty", "record again; events.log says why")
    return file


def _header(file: BinaryIO, path: str | Path) -> tuple[int, str]:
    """Version and clock from the first line."""
    # bpftrace 0.17 says "Attaching N probes..." before the first probe can print.
    match = _HEADER.search(file.read(65536))
    if match is None:
        raise BadInput(f"{path}: no '#nsight-events' line: not a file of message events", _HINT)
    version = int(match[1][:9])  # Python refuses to read thousands of digits
    if version not in _AT_ONCE:
        raise BadInput(
            f"{path}: version {match[1].decode()[:20]} of message events is unknown (known: 1, 2)",
            "use the nsight-report of the release that recorded it",
        )
    clock = match[2].decode()
    if clock not in ("boottime", "monotonic"):
        raise BadInput(f"{path}: clock {clock[:20]!r} is unknown (known: boottime, monotonic)", _HINT)
    return version, clock


def _tables(file: BinaryIO, notes: Notes, ledger: Ledger) -> Iterator[tuple[pa.Table, int]]:
    """All plausible lines, as tables of the fields of an event or of a message, and the number of each table's first line."""
    n_events = 0
    for events, messages in event_blocks(file, notes):
        for block, columns, each in (
            (events, _COLUMNS, 1),
            (messages, message_lines.COLUMNS, message_lines.N_EVENTS),
        ):
            if not block:
                continue
            table, malformed = _parse(block, columns)
            ledger.add("event_lines_impossible", malformed)
            room = (MAX_EVENTS - n_events) // each
            ledger.add("event_lines_beyond_limit", max(0, table.num_rows - room))
            table = table.slice(0, max(0, room))
            if table.num_rows:
                yield table.unify_dictionaries().combine_chunks(), n_events
            n_events += table.num_rows * each


def _kinds(table: pa.Table) -> dict[str, int]:
    """Number of events of each kind."""
    return {str(row["values"]): int(row["counts"]) for row in pc.value_counts(table["kind"]).to_pylist()}


def _hexadecimal(columns: list[str]) -> tuple[str, ...]:
    return fields.HEX if columns == _COLUMNS else message_lines.HEX


def _types(columns: list[str]) -> dict[str, pa.DataType]:
    text = ("kind", *_hexadecimal(columns))
    return {name: _DICT if name in text else pa.int64() for name in columns}


def _parse(block: bytes, columns: list[str], as_text: bool = False) -> tuple[pa.Table, int]:
    """Lines of these fields as a table, and how many had to be left out."""
    types = dict.fromkeys(columns, pa.string()) if as_text else _types(columns)
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(column_names=columns, block_size=8 << 20),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, escape_char=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        if as_text:
            raise BadInput("events.tsv cannot be parsed", _HINT) from None
        return _parse_carefully(block, columns)
    if not as_text and not all(_only_hex(table[name]) for name in _hexadecimal(columns)):
        return _parse_carefully(block, columns)
    return table, 0


def _only_hex(column: pa.ChunkedArray) -> bool:
    return all(
        pc.all(pc.match_substring_regex(chunk.dictionary, _HEX_PATTERN)).as_py() is not False
        for chunk in column.chunks
    )


def _parse_carefully(block: bytes, columns: list[str]) -> tuple[pa.Table, int]:
    """Like _parse, for a block in which some field is no number: only those lines are left out."""
    table, _ = _parse(block, columns, as_text=True)
    good = None
    for name in columns[1:]:
        pattern = _HEX_PATTERN if name in _hexadecimal(columns) else _NUMBER_PATTERN
        matches = pc.match_substring_regex(table[name], pattern)
        good = matches if good is None else pc.and_(good, matches)
    n_rows = table.num_rows
    table = table.filter(good)
    return table.cast(pa.schema(list(_types(columns).items()))), n_rows - table.num_rows


def _account(seen: Counter[str], notes: Notes, ledger: Ledger) -> None:
    """Enter events that the probes produced and that are not in the file."""
    missing = 0
    for kind in KINDS:
        lost = notes.counts.get(kind, 0) - seen[kind]
        if lost > 0:
            missing += lost
            ledger.add("probe_events_lost", lost, kind=kind)
        elif lost < 0 and notes.ended and kind in notes.counts:
            ledger.add("more_events_than_counted", -lost, kind=kind)
    # The two counts see the same losses from two sides; only the excess is new.
    ledger.add("bpftrace_events_lost", max(0, notes.reported_lost - missing))
    account_counts(notes.counts, ledger)
    if not notes.ended:
        ledger.add("events_file_cut", 1)
    elif not notes.counts:
        ledger.add("probe_counts_missing", 1)
    ledger.add("events_file_unfinished_line", notes.truncated)
    ledger.add("events_file_foreign_lines", notes.foreign)


def account_counts(counts: Mapping[str, int], ledger: Ledger) -> None:
    """Enter events that the probes counted and did not write."""
    for key in of_group("probe_count_"):
        ledger.add(f"probe_count_{key}", counts.get(key, 0))
