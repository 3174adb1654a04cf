# SPDX-License-Identifier: GPL-2.0-only
"""Columns of the parts (TCP and UDP, received and sent) into one ``messages`` table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import schema
from ..losses import Ledger
from .columns import I64, NONE, Events, Vocabulary
from .stamps import NIC_SOURCES

Columns = dict[str, npt.NDArray[Any]]

_DIRECTIONS = ["rx", "tx"]
_STAMPS = {  # letter, column, for each direction
    "rx": (("n", "nic_ns"), ("a", "arrival_ns"), ("h", "handoff_ns"), ("r", "app_ns")),
    "tx": (("s", "app_ns"), ("d", "driver_ns"), ("c", "completion_ns")),
}
_TIMES = (
    "nic_ns",
    "nic_error_ns",
    "arrival_ns",
    "arrival_last_ns",
    "recv_cpu",
    "handoff_ns",
    "handoff_cpu",
    "call_ns",
    "app_ns",
    "app_cpu",
    "driver_ns",
    "completion_ns",
)
_PLAIN = (
    "conn_id",
    "proto",
    "byte_start",
    "byte_end",
    "nbytes",
    "pid",
    "tid",
    "fd",
    "n_arrivals",
    "n_reads",
    "n_in_read",
    "retransmitted",
)


def from_calls(events: Events, row: I64, direction: str) -> Columns:
    """What the read or send event itself says; every stamp of the other stages starts as NONE."""
    n_rows = len(row)
    columns: Columns = {name: np.full(n_rows, NONE) for name in _TIMES}
    for name in ("proto", "netns", "local", "remote", "pid", "tid", "fd", "comm"):
        columns[name] = getattr(events, name)[row]
    columns |= {
        "direction": np.full(n_rows, _DIRECTIONS.index(direction)),
        "nbytes": events.length[row],
        "call_ns": events.call[row],
        "app_ns": events.ts[row],
        "app_cpu": events.cpu[row],
        "nic_source": np.zeros(n_rows, np.int8),
        "request_type": np.full(n_rows, NONE),
        "n_reads": np.ones(n_rows, np.int64),
        "n_in_read": np.ones(n_rows, np.int64),
    }
    return columns


def assemble(
    parts: list[Columns], vocabulary: Vocabulary, ledger: Ledger, request_types: list[str] | None = None
) -> pa.Table:
    """One table that conforms to ``schema.MESSAGES``, in order of ``first_ns``."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    first, last = _ends(columns, ledger)
    order = np.lexsort((columns["byte_start"], columns["conn_id"], last, first))
    columns = {name: values[order] for name, values in columns.items()}
    first, last = first[order], last[order]
    arrays: dict[str, pa.Array] = {
        "message_id": pa.array(np.arange(len(first))),
        "first_ns": pa.array(first),
        "last_ns": pa.array(last),
        "latency_ns": pa.array(last - first),
        "direction": _text(columns["direction"], _DIRECTIONS),
        "netns": pa.array(vocabulary.namespaces[columns["netns"]], pa.uint32())
        if len(first)
        else pa.array([], pa.uint32()),
        "comm": _text(columns["comm"], vocabulary.comms),
        "nic_source": _text(columns["nic_source"], NIC_SOURCES),
        "request_type": _text(columns["request_type"], request_types or []),
        "stamps": _stamps(columns),
    }
    for side, text, port in (("local", "laddr", "lport"), ("remote", "raddr", "rport")):
        arrays[text] = _text(vocabulary.endpoint_address[columns[side]], vocabulary.addresses)
        arrays[port] = pa.array(vocabulary.endpoint_port[columns[side]])
    for name in _TIMES:
        arrays[name] = pa.array(columns[name], mask=columns[name] == NONE)
    for name in _PLAIN:
        arrays[name] = pa.array(columns[name])
    return schema.conform("messages", pa.table({name: arrays[name] for name in schema.MESSAGES.names()}))


def _ends(columns: Columns, ledger: Ledger) -> tuple[I64, I64]:
    """First and last time of each lifetime from the stamps that there are."""
    rx = columns["direction"] == _DIRECTIONS.index("rx")
    app = columns["app_ns"]
    first = _coalesce(columns["nic_ns"], columns["arrival_ns"], columns["handoff_ns"], app)
    driver = columns["driver_ns"]
    # A send that returned after the driver had the data lasted at least from then on.
    sent = _coalesce(columns["call_ns"], np.where(driver != NONE, np.minimum(driver, app), app))
    last = _coalesce(columns["completion_ns"], driver, app)
    ledger.add(
        "received messages without a begin",
        int(np.count_nonzero(rx & (columns["nic_ns"] == NONE) & (columns["arrival_ns"] == NONE))),
        "info",
        "neither NIC nor arrival stamp: their latency is too short and says nothing",
    )
    ledger.add(
        "sent messages without the time of the call",
        int(np.count_nonzero(~rx & (columns["call_ns"] == NONE))),
        "info",
        "the system call was entered before the capture, or was none (io_uring, kernel)",
    )
    return np.where(rx, first, sent), np.where(rx, app, last)


def _coalesce(*candidates: I64) -> I64:
    result = candidates[0]
    for other in candidates[1:]:
        result = np.where(result != NONE, result, other)
    return result


def _stamps(columns: Columns) -> pa.DictionaryArray:
    """Which stamps were measured, as the letters of ``schema.MESSAGES``."""
    names: list[str] = []
    codes = np.zeros(len(columns["direction"]), np.int64)
    for number, direction in enumerate(_DIRECTIONS):
        letters = _STAMPS[direction]
        bits = sum((columns[column] != NONE).astype(np.int64) << i for i, (_, column) in enumerate(letters))
        mine = columns["direction"] == number
        codes[mine] = bits[mine] + len(names)
        names += [
            "".join(letter for i, (letter, _) in enumerate(letters) if mask >> i & 1)
            for mask in range(1 << len(letters))
        ]
    # The same letters can only come from one direction, except none at all.
    values = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return _text(np.array([values[name] for name in names])[codes], list(values))


def _text(codes: npt.NDArray[Any], values: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32), mask=codes == NONE), pa.array(values, pa.string())
    )
