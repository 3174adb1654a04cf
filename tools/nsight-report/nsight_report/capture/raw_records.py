# SPDX-License-Identifier: GPL-2.0-only
"""``records/``, the files of the BPF recorder: activity of cores, and message events.

The decoding is native (``nsight-rawdata``): into the array that ``perf_data`` makes of perf.data, and into
timestamps with the fields of events.tsv. Both are in CLOCK_MONOTONIC. Documentation/formats.md describes the files.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import BadInput, OutputError
from ..losses import Ledger
from ..tables.external_sort import Rows
from ..tables.store import Written
from . import event_fields as fields
from . import message_events, native
from .event_lines import KINDS as LETTERS
from .perf_data import EVENT, KINDS, Decoded

# Mirrors struct nsight_stamp of native/stamps.h.
STAMP = np.dtype(
    [
        ("ts", "<i8"),
        ("call_ts", "<i8"),
        ("sk", "<u8"),
        ("laddr_hi", "<u8"),
        ("laddr_lo", "<u8"),
        ("raddr_hi", "<u8"),
        ("raddr_lo", "<u8"),
        ("hwstamp", "<i8"),
        ("swstamp", "<i8"),
        ("aux", "<i8"),
        ("len", "<i4"),
        ("seq", "<u4"),
        ("netns", "<u4"),
        ("pid", "<i4"),
        ("tid", "<u4"),
        ("fd", "<i4"),
        ("comm", "<u4"),
        ("cpu", "<u2"),
        ("lport", "<u2"),
        ("rport", "<u2"),
        ("kind", "u1"),
        ("family", "u1"),
        ("proto", "u1"),
        ("pad", "V3"),
    ]
)

# Mirrors struct nsight_interval.
INTERVAL = np.dtype(
    [
        ("start", "<i8"),
        ("stop", "<i8"),
        ("handover", "<i8"),
        ("pid", "<i4"),
        ("tid", "<u4"),
        ("begin_tid", "<u4"),
        ("comm", "<u4"),
        ("cpu", "<u2"),
        ("begin_cpu", "<u2"),
        ("name", "<u2"),
        ("pad", "V2"),
    ]
)

_PIECE = 1 << 16  # timestamps that are decoded at a time

# A compressed file grows about ten times, and the decoded form of a record is larger than the record.
_GROWTH = 12
_AGAIN = "record again, with larger buffers"


def activity(directory: Path) -> tuple[Decoded, pa.Table]:
    """Activity of cores, in the form that ``perf_data.load`` returns for perf.data, and a losses table.

    ``directory``: ``records`` of a capture. Raises BadInput if none of its files is usable; files that were cut
    are decoded as far as possible.
    """
    with _decoded(directory, "activity") as (scratch, info):
        events = np.fromfile(scratch / "perf-events.bin", dtype=EVENT)
    ledger = Ledger("capture")
    account(info, ledger)
    return Decoded(events, info.pop("strings"), info["clock"], info, source="records/"), ledger.table()


def messages(directory: Path, to: Path) -> tuple[Written, pa.Table]:
    """Table ``events`` in directory ``to``, in the form that ``message_events.load`` makes from events.tsv, and a losses table.

    Raises BadInput like ``activity``.
    """
    ledger, words = Ledger("capture"), fields.Words()
    with _decoded(directory, "messages") as (scratch, info):
        pieces = _pieces(scratch / "messages.bin", info["strings"], words, ledger)
        written = message_events.store(pieces, words, to, ledger)
    _account_messages(info, ledger)
    return written, ledger.table()


def intervals(directory: Path) -> Iterator[tuple[npt.NDArray[np.void], list[str]]]:
    """Recorded intervals of threads, some at a time: arrays of INTERVAL, in which ``comm`` is an index into the names returned with them.

    Their losses are among those of ``activity``. Raises BadInput like ``activity``.
    """
    with _decoded(directory, "intervals") as (scratch, info):
        names = [fields.comm_text(name) for name in info["strings"]]
        with (scratch / "intervals.bin").open("rb") as file:
            while len(some := np.fromfile(file, INTERVAL, _PIECE)):
                yield some, names


@contextmanager
def _decoded(directory: Path, what: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The directory with the arrays that nsight-rawdata makes, removed at the end, and perf-events.json."""
    try:
        size = sum(path.stat().st_size for path in directory.glob("*.records"))
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}", "copy the whole capture directory") from None
    with tempfile.TemporaryDirectory(prefix="nsight-") as scratch:
        native.run("nsight-rawdata", [f"--only={what}", str(directory.resolve()), scratch], _GROWTH * size)
        try:
            info = json.loads(Path(scratch, "perf-events.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise OutputError(
                f"{error.filename}: {error.strerror}", "free some disk space, or set TMPDIR"
            ) from None
        if tuple(info["kinds"]) != KINDS:
            raise BadInput("nsight-rawdata is of another version than this package", "run: make build")
        yield Path(scratch), info


def _pieces(path: Path, strings: list[str], words: fields.Words, ledger: Ledger) -> Iterator[Rows]:
    """The events in the timestamps of a file, some at a time."""
    kinds, comms = words.of("kind"), words.of("comm")
    kind = np.array([kinds.setdefault(letter, len(kinds)) for letter in LETTERS], np.int32)
    names = [fields.comm_text(name) for name in strings]
    comm = np.array([comms.setdefault(name, len(comms)) for name in names], np.int32)
    n_stamps = path.stat().st_size // STAMP.itemsize
    ledger.add(
        "record_events_beyond_limit",
        max(0, n_stamps - message_events.MAX_EVENTS),
        most=message_events.MAX_EVENTS,
    )
    n_stamps = min(n_stamps, message_events.MAX_EVENTS)
    with path.open("rb") as file:
        for first in range(0, n_stamps, _PIECE):
            stamps = np.fromfile(file, STAMP, min(_PIECE, n_stamps - first))
            yield fields.decode(_numbers(stamps, kind, comm, ledger), words, first, ledger)


def _numbers(
    stamps: npt.NDArray[np.void], kind: npt.NDArray[np.int32], comm: npt.NDArray[np.int32], ledger: Ledger
) -> fields.Numbers:
    numbers: fields.Numbers = {
        name: stamps[name] if stamps.dtype[name] == np.uint64 else stamps[name].astype(np.int64)
        for name in STAMP.names or ()
        if name != "pad"
    }
    numbers["kind"], numbers["comm"] = kind[stamps["kind"]], comm[stamps["comm"]]
    unknown = numbers["pid"] < 0
    ledger.add("event_process_unknown", int(np.count_nonzero(unknown)))
    numbers["pid"] = np.where(unknown, numbers["tid"], numbers["pid"])
    return numbers


def _account_messages(info: dict[str, Any], ledger: Ledger) -> None:
    """Enter message events that were not recorded, and what the probes counted."""
    lost = Counter[str]()
    for entry in info["lost"]:
        what, _, kind = entry["type"].partition(" ")
        if what == "message":
            lost[kind[0]] += entry["lost"] + entry["missing"]
    for letter in LETTERS:
        ledger.add("record_events_lost", lost[letter], letter=letter)
    message_events.account_counts(info["probe_counts"], ledger)
    if info["cut"]:
        ledger.add("record_messages_cut", 1)


def account(info: dict[str, Any], ledger: Ledger) -> None:
    """Enter the losses that nsight-rawdata counted, except those of message events."""
    for entry in info["lost"]:
        if entry["type"].startswith("message "):
            continue
        ledger.add("record_type_lost", entry["lost"], type=entry["type"])
        ledger.add("record_type_missing", entry["missing"], type=entry["type"])
    ledger.counted("records_", info["losses"], but=["lost_records", "missing_records"])
    ledger.add("record_files_cut", info["n_cut_files"])
