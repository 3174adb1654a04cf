# SPDX-License-Identifier: GPL-2.0-only
"""Joins the columns of the parts (TCP and UDP, received and sent) into one ``messages`` table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..losses import Ledger
from ..tables import schema
from ..tables.external_sort import Rows, Runs, row_type, rows_of, to_table
from ..tables.store import Writer, Written, writing
from .columns import I64, NONE, Events, Vocabulary
from .stamps import NIC_SOURCES

Columns = dict[str, npt.NDArray[Any]]

_DIRECTIONS = ["rx", "tx", "interval"]
_STAMPS = {  # letter, column, for each direction
    "rx": (("n", "nic_ns"), ("a", "arrival_ns"), ("h", "handoff_ns"), ("r", "app_ns")),
    "tx": (("s", "app_ns"), ("d", "driver_ns"), ("c", "completion_ns")),
    "interval": (("b", "call_ns"), ("h", "handoff_ns"), ("e", "app_ns")),
}
_TIMES = (
    "nic_ns",
    "nic_error_ns",
    "arrival_ns",
    "arrival_last_ns",
    "recv_cpu",
    "handoff_ns",
    "handoff_cpu",
    "begun_ns",
    "call_ns",
    "last_call_ns",
    "app_ns",
    "app_cpu",
    "driver_ns",
    "qdisc_dur_ns",
    "completion_ns",
    "acked_ns",
)
_PLAIN = (
    "conn_id",
    "proto",
    "byte_start",
    "byte_end",
    "nbytes",
    "stream_id",
    "pid",
    "tid",
    "fd",
    "n_arrivals",
    "n_reads",
    "n_in_read",
    "retransmitted",
    "copy_lost",
    "unaccepted",
)

_ROW = row_type("messages")
_ORDER = ("first_ns", "last_ns", "conn_id", "byte_start", "direction")


def from_calls(events: Events, row: I64, direction: str) -> Columns:
    """What the read or send event itself contains; timestamps of all other stages start as NONE."""
    n_rows = len(row)
    columns: Columns = {name: np.full(n_rows, NONE) for name in _TIMES}
    for name in ("proto", "netns", "local", "remote", "pid", "tid", "fd", "comm"):
        columns[name] = getattr(events, name)[row]
    columns |= {
        "direction": np.full(n_rows, _DIRECTIONS.index(direction)),
        "nbytes": events.length[row],
        "call_ns": events.call[row],
        "last_call_ns": events.call[row] if direction == "tx" else np.full(n_rows, NONE),
        "app_ns": events.ts[row],
        "app_cpu": events.cpu[row],
        "nic_source": np.zeros(n_rows, np.int8),
        "request_type": np.full(n_rows, NONE),
        "copy_lost": np.zeros(n_rows, bool),
        "unaccepted": np.zeros(n_rows, bool),
        "stream_id": np.full(n_rows, NONE),
        "n_reads": np.ones(n_rows, np.int64),
        "n_in_read": np.ones(n_rows, np.int64),
    }
    return columns


class Messages:
    """The ``messages`` table under construction: rows of the parts in order of ``first_ns``, in directory ``scratch``."""

    def __init__(
        self, scratch: Path, vocabulary: Vocabulary, ledger: Ledger, request_types: list[str]
    ) -> None:
        self._vocabulary, self._ledger = vocabulary, ledger
        self._written = Written(scratch / "messages.parquet")
        self._runs = Runs(scratch / "messages.runs", _ROW, _ORDER)
        self._bases: list[I64] = []
        self._n_tcp = self._n_datagrams = self._n_names = 0
        self._words: dict[str, list[str]] = {
            "direction": _DIRECTIONS,
            "laddr": vocabulary.addresses,
            "raddr": vocabulary.addresses,
            "comm": vocabulary.comms,
            "nic_source": NIC_SOURCES,
            "request_type": request_types,
            "timestamps": list(_STAMP_WORDS),
        }

    def add_tcp(self, parts: list[Columns], bases: I64) -> None:
        """Add the messages of connections that no other call adds; ``bases``: the base of each of these connections."""
        for columns in parts:
            self._add(columns, self._n_tcp)
        self._bases.append(bases)
        self._n_tcp += len(bases)

    def add_datagrams(self, parts: list[Columns], n_connections: int) -> None:
        """Add datagrams, after all of TCP."""
        for columns in parts:
            self._add(columns, self._n_tcp)
        self._n_datagrams = n_connections

    def add_intervals(self, columns: Columns, names: list[str], comms: list[str]) -> None:
        """Add intervals of threads, after all datagrams: ``name`` is an index into ``names``; each name counts as a connection.
        ``comm`` is an index into ``comms``. Both lists may grow from call to call, and keep their entries. ``begin_tid``, ``recv_cpu``
        and ``handoff_ns`` may be left out: there was no hand-off.
        """
        order = np.argsort(columns["call_ns"], kind="stable")
        columns = {name: of[order] for name, of in columns.items()}
        one = np.zeros(
            1, _ROW
        )  # what is the same in all of them: to fill that in once is a third of the work
        for name in (*_TIMES, "fd", "begin_tid", "stream_id"):
            one[name] = NONE
        for name in ("byte_end", "n_reads", "n_in_read"):
            one[name] = 1  # intervals have no bytes
        one["direction"] = _DIRECTIONS.index("interval")
        one["laddr"] = one["raddr"] = self._places("laddr", [""])
        rows = np.repeat(one, len(order))
        for name in {*_TIMES, "fd", "begin_tid", "stream_id", "pid", "tid"} & set(columns):
            rows[name] = columns[name]
        rows["first_ns"], rows["last_ns"] = columns["call_ns"], columns["app_ns"]
        rows["latency_ns"] = rows["last_ns"] - rows["first_ns"]
        rows["timestamps"] = np.where(rows["handoff_ns"] == NONE, _STAMP_WORDS["be"], _STAMP_WORDS["bhe"])
        rows["request_type"] = self._places("request_type", names)[columns["name"]]
        rows["comm"] = self._places("comm", comms)[columns["comm"]]
        rows["conn_id"] = self._n_tcp + self._n_datagrams + columns["name"]
        self._n_names = max(self._n_names, len(names))
        self._runs.add(rows)

    def _places(self, column: str, words: list[str]) -> I64:
        """Indices of words in the list of a column; new ones are entered. Both columns of addresses share one list."""
        words = list(words)  # the thread that reads ahead may append to them meanwhile
        known = self._words[column]
        place = {word: number for number, word in enumerate(known)}
        for word in words:
            if word not in place:
                place[word] = len(known)
                known.append(word)
        return np.array([place[word] for word in words], np.int64)

    def _add(self, columns: Columns, n_before: int) -> None:
        of = self._vocabulary
        first, last = _ends(columns, self._ledger)
        made: dict[str, npt.NDArray[Any] | int] = {
            name: columns[name]
            for name in (*_TIMES, *_PLAIN, "direction", "comm", "nic_source", "request_type")
        }
        made |= {"first_ns": first, "last_ns": last, "latency_ns": last - first, "begin_tid": NONE}
        made |= {"conn_id": columns["conn_id"] + n_before, "timestamps": _stamps(columns)}
        made["netns"] = of.namespaces[columns["netns"]] if len(first) else 0
        for side, text, port in (("local", "laddr", "lport"), ("remote", "raddr", "rport")):
            made[text] = of.endpoint_address[columns[side]]
            made[port] = of.endpoint_port[columns[side]]
        self._runs.add(rows_of(_ROW, made))

    def write(self) -> Written:
        """Write all messages, numbered."""
        # Connections are numbered by the first event of their base, independent of the part.
        order = np.argsort(np.concatenate([*self._bases, np.zeros(0, np.int64)]), kind="stable")
        conn_id = np.arange(self._n_tcp + self._n_datagrams + self._n_names)
        conn_id[order] = np.arange(self._n_tcp)

        def numbered(rows: Rows) -> Rows:
            rows["conn_id"] = conn_id[rows["conn_id"]]
            return rows

        path = self._written.path
        with writing(path), Writer(path, schema.TABLES["messages"].arrow()) as writer:
            for rows in self._runs.merged(numbered):
                rows["message_id"] = np.arange(writer.n_rows, writer.n_rows + len(rows))
                writer.write(to_table("messages", rows, self._words, null=NONE))
        return self._written


def _ends(columns: Columns, ledger: Ledger) -> tuple[I64, I64]:
    """First and last time of each lifetime, from the timestamps that exist."""
    rx = columns["direction"] == _DIRECTIONS.index("rx")
    app = columns["app_ns"]
    first = _coalesce(columns["nic_ns"], columns["arrival_ns"], columns["handoff_ns"], app)
    driver = columns["driver_ns"]
    # If a send returned after the driver had the data, it had begun by then at the latest.
    sent = _coalesce(columns["call_ns"], np.where(driver != NONE, np.minimum(driver, app), app))
    last = _coalesce(columns["completion_ns"], driver, app)
    ledger.add(
        "received_without_begin",
        int(np.count_nonzero(rx & (columns["nic_ns"] == NONE) & (columns["arrival_ns"] == NONE))),
    )
    ledger.add("sent_without_call_time", int(np.count_nonzero(~rx & (columns["call_ns"] == NONE))))
    return np.where(rx, first, sent), np.where(rx, app, last)


def _coalesce(*candidates: I64) -> I64:
    result = candidates[0]
    for other in candidates[1:]:
        result = np.where(result != NONE, result, other)
    return result


def _stamps(columns: Columns) -> npt.NDArray[np.int32]:
    """Which timestamps were measured: the index in ``_STAMP_WORDS`` of the letters of ``schema.TABLES["messages"]``."""
    result = np.zeros(len(columns["direction"]), np.int32)
    for number, direction in enumerate(_DIRECTIONS):
        letters = _STAMPS[direction]
        mine = columns["direction"] == number
        bits = sum(
            (columns[column][mine] != NONE).astype(np.int64) << i for i, (_, column) in enumerate(letters)
        )
        names = [_letters(direction, mask) for mask in range(1 << len(letters))]
        result[mine] = np.array([_STAMP_WORDS[name] for name in names], np.int32)[bits]
    return result


def _letters(direction: str, mask: int) -> str:
    return "".join(letter for i, (letter, _) in enumerate(_STAMPS[direction]) if mask >> i & 1)


# Equal letters can come from one direction only, except for no letters at all.
_STAMP_WORDS = {
    name: number
    for number, name in enumerate(
        dict.fromkeys(_letters(d, mask) for d in _DIRECTIONS for mask in range(1 << len(_STAMPS[d])))
    )
}
